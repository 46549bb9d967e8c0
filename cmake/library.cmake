# The library of all floors below the program's: a static archive unless BUILD_SHARED_LIBS is on.
# Each floor is a target of its own, tessera_<floor>, compiled once. Two archives contain them all: `tessera`, with the
# CUDA device or with the sources that report its absence, and for the tests `tessera_emulated`, whose CUDA device runs
# on the emulator (emulator/CMakeLists.txt).
set(tessera_floors base kernels engine comm sharding checkpoint tokenizers models tasks trainer)  # from the ground up
file(GLOB_RECURSE tessera_cuda_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu
     ${PROJECT_SOURCE_DIR}/engine/cuda/*.cpp ${PROJECT_SOURCE_DIR}/comm/nccl/*.cpp)
set(tessera_cuda_absent_sources
    ${PROJECT_SOURCE_DIR}/engine/backends/cuda_absent.cpp ${PROJECT_SOURCE_DIR}/comm/connect/nccl_absent.cpp)

# The options for the project's own code (tessera_flags), and its include folder (tessera_settings): files name each
# other by their path from the repository's root, which users of the library do not have.
add_library(tessera_flags INTERFACE)
add_library(tessera_settings INTERFACE)
target_link_libraries(tessera_settings INTERFACE tessera_flags)
target_include_directories(tessera_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_features(tessera_flags INTERFACE cxx_std_20)
# Contraction must not depend on how the compiler splits a loop: products and sums fuse only where a kernel asks for it.
target_compile_options(tessera_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -fno-math-errno>
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TESSERA_WERROR}>>:-Werror>)
# Targets set this property if they need another optimisation than the build type's; it comes last.
target_compile_options(tessera_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:TESSERA_OPTIMISATION>>)
if(TESSERA_SANITIZE)
  # The first report ends the program, so that no report is overlooked.
  target_compile_options(tessera_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TESSERA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1>)
  target_compile_definitions(tessera_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
  find_program(TESSERA_LLD ld.lld)
  if(TESSERA_LLD)
    target_link_options(tessera_flags INTERFACE -fuse-ld=lld)  # takes a third of the time
  endif()
  if(TESSERA_SANITIZE MATCHES "address")
    # The address sanitizer reports an access that these would report (not an address that is computed and never used),
    # and vectorised and emulated kernels take the compiler 40 % less time without them.
    target_compile_options(tessera_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,object-size,pointer-overflow>)
  endif()
  # One instruction set instead of three: under the sanitizers the compiler takes a minute for a vectorised kernel.
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    target_compile_options(tessera_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=haswell>)
    target_compile_definitions(tessera_flags INTERFACE HWY_COMPILE_ONLY_STATIC)
  endif()
endif()

# Usage requirements of both archives.
function(tessera_library_usage target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target}
    PUBLIC fmt::fmt Threads::Threads nlohmann_json::nlohmann_json
    PRIVATE $<BUILD_INTERFACE:tessera_settings> DNNL::dnnl $<TARGET_NAME_IF_EXISTS:OpenMP::OpenMP_CXX>
            PkgConfig::libhwy PkgConfig::libxxhash PkgConfig::icu-uc PkgConfig::libpcre2-8
            PkgConfig::sentencepiece PkgConfig::libsodium ${CMAKE_DL_LIBS})
  target_include_directories(${target} SYSTEM PRIVATE ${oniguruma_INCLUDE_DIRS})
endfunction()

set(tessera_floor_objects)
foreach(floor IN LISTS tessera_floors)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${floor}/*.cpp)
  list(REMOVE_ITEM sources ${tessera_cuda_sources} ${tessera_cuda_absent_sources})
  if(NOT floor STREQUAL "kernels")  # a vectorised kernel is already compiled several times
    tessera_together(sources ${floor} 8)
  endif()
  add_library(tessera_${floor} OBJECT ${sources})
  tessera_library_usage(tessera_${floor})
  if(TESSERA_SANITIZE)
    set(optimised base kernels)
    if(TESSERA_SANITIZE MATCHES "thread")
      list(APPEND optimised engine comm sharding)  # which its tests run most: they take half the time
    endif()
    if(floor IN_LIST optimised)
      set_target_properties(tessera_${floor} PROPERTIES TESSERA_OPTIMISATION -O1)
    else()
      set_target_properties(tessera_${floor} PROPERTIES TESSERA_OPTIMISATION -O0)  # it computes little
    endif()
  endif()
  list(APPEND tessera_floor_objects $<TARGET_OBJECTS:tessera_${floor}>)
endforeach()

add_library(tessera ${tessera_floor_objects})
tessera_library_usage(tessera)
# Before 1.0 a minor version may change the ABI.
set_target_properties(tessera PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# The target for users, in this tree the examples and a parent project: the library with only its public headers. The
# package has both in one target.
add_library(tessera_public INTERFACE)
add_library(Tessera::tessera ALIAS tessera_public)
target_link_libraries(tessera_public INTERFACE tessera)
target_include_directories(tessera_public INTERFACE ${tessera_public_include})
add_dependencies(tessera_public tessera_public_headers)
if(TESSERA_CUDA)
  include(cmake/cuda.cmake)
else()
  target_sources(tessera PRIVATE ${tessera_cuda_absent_sources})
endif()

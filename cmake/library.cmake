# The library of all floors below bench and cli, a static archive unless BUILD_SHARED_LIBS is on.
#
# What does not depend on the kind of device is compiled once (tessera_kernels, tessera_core). Two archives hold it:
# `tessera`, with the CUDA device or with the sources that say it is absent, and for the tests `tessera_emulated`, whose
# CUDA device runs on the emulator (emulator/CMakeLists.txt).
file(GLOB_RECURSE tessera_kernel_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/kernels/base/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp)
file(GLOB_RECURSE tessera_core_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/engine/*.cpp ${PROJECT_SOURCE_DIR}/sharding/*.cpp
     ${PROJECT_SOURCE_DIR}/checkpoint/*.cpp ${PROJECT_SOURCE_DIR}/tokenizers/*.cpp
     ${PROJECT_SOURCE_DIR}/models/*.cpp ${PROJECT_SOURCE_DIR}/tasks/*.cpp)
file(GLOB_RECURSE tessera_cuda_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu
     ${PROJECT_SOURCE_DIR}/engine/cuda/*.cpp ${PROJECT_SOURCE_DIR}/sharding/comm/nccl/*.cpp)
set(tessera_cuda_absent_sources
    ${PROJECT_SOURCE_DIR}/engine/cuda_absent.cpp ${PROJECT_SOURCE_DIR}/sharding/comm/nccl_absent.cpp)
list(REMOVE_ITEM tessera_core_sources ${tessera_cuda_sources} ${tessera_cuda_absent_sources})

# How the project's own code is compiled (tessera_flags), and from where: its files name each other by their path from the
# repository's root, which users of the library never see (tessera_settings).
add_library(tessera_flags INTERFACE)
add_library(tessera_settings INTERFACE)
target_link_libraries(tessera_settings INTERFACE tessera_flags)
target_include_directories(tessera_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_features(tessera_flags INTERFACE cxx_std_20)
# Contraction must not depend on how the compiler cuts a loop: products and sums fuse only where a kernel says so.
target_compile_options(tessera_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -fno-math-errno>
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TESSERA_WERROR}>>:-Werror>)
# Targets say by this property what they need other than the build type's optimisation; it comes last.
target_compile_options(tessera_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:TESSERA_OPTIMISATION>>)
if(TESSERA_SANITIZE)
  # The first report ends the program: nothing is printed and then forgotten.
  target_compile_options(tessera_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TESSERA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1>)
  target_compile_definitions(tessera_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
  find_program(TESSERA_LLD ld.lld)
  if(TESSERA_LLD)
    target_link_options(tessera_flags INTERFACE -fuse-ld=lld)  # in a third of the time
  endif()
  # One instruction set instead of three: under the sanitizers a vectorised kernel takes the compiler a minute.
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    target_compile_options(tessera_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=haswell>)
    target_compile_definitions(tessera_flags INTERFACE HWY_COMPILE_ONLY_STATIC)
  endif()
endif()

# What users of either form need as well.
function(tessera_library_usage target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target}
    PUBLIC fmt::fmt Threads::Threads nlohmann_json::nlohmann_json
    PRIVATE $<BUILD_INTERFACE:tessera_settings> DNNL::dnnl $<TARGET_NAME_IF_EXISTS:OpenMP::OpenMP_CXX>
            PkgConfig::libhwy PkgConfig::libxxhash PkgConfig::icu-uc PkgConfig::libpcre2-8 PkgConfig::sentencepiece
            PkgConfig::libsodium ${CMAKE_DL_LIBS})
endfunction()

add_library(tessera_kernels OBJECT ${tessera_kernel_sources})
tessera_library_usage(tessera_kernels)
tessera_together(tessera_core_sources core 8)
add_library(tessera_core OBJECT ${tessera_core_sources})
tessera_library_usage(tessera_core)
if(TESSERA_SANITIZE)
  set_target_properties(tessera_kernels PROPERTIES TESSERA_OPTIMISATION -O1)
  set_target_properties(tessera_core PROPERTIES TESSERA_OPTIMISATION -O0)  # it computes little
endif()

add_library(tessera $<TARGET_OBJECTS:tessera_kernels> $<TARGET_OBJECTS:tessera_core>)
tessera_library_usage(tessera)
# Before 1.0 a minor version may change what programs are linked with.
set_target_properties(tessera PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

# What others link, in this tree the examples and a parent project: the library with its public headers alone. The
# package has them in one target.
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

# The library, one static archive of all floors below bench and cli.
file(GLOB_RECURSE tessera_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/kernels/base/*.cpp ${PROJECT_SOURCE_DIR}/kernels/cpu/*.cpp
     ${PROJECT_SOURCE_DIR}/engine/*.cpp ${PROJECT_SOURCE_DIR}/sharding/*.cpp
     ${PROJECT_SOURCE_DIR}/checkpoint/*.cpp ${PROJECT_SOURCE_DIR}/models/*.cpp)
add_library(tessera STATIC ${tessera_sources})
add_library(Tessera::tessera ALIAS tessera)

add_library(tessera_settings INTERFACE)
target_compile_features(tessera_settings INTERFACE cxx_std_20)
target_compile_options(tessera_settings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -fno-math-errno
  $<$<BOOL:${TESSERA_WERROR}>:-Werror>)
# Contraction must not depend on how the compiler cuts a loop: products and sums fuse only where a kernel says so.
target_compile_options(tessera_settings INTERFACE -ffp-contract=off)
if(TESSERA_SANITIZE)
  # The first report ends the program: nothing is printed and then forgotten.
  target_compile_options(tessera_settings INTERFACE -fsanitize=${TESSERA_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O1)
  target_compile_definitions(tessera_settings INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(tessera_settings INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()

set_target_properties(tessera PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON EXPORT_NAME tessera)
target_compile_features(tessera PUBLIC cxx_std_20)
target_include_directories(tessera PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                          $<INSTALL_INTERFACE:include/tessera-${PROJECT_VERSION}>)
target_link_libraries(tessera
  PUBLIC fmt::fmt Threads::Threads nlohmann_json::nlohmann_json
  PRIVATE $<BUILD_INTERFACE:tessera_settings> DNNL::dnnl OpenMP::OpenMP_CXX spdlog::spdlog_header_only
          PkgConfig::libhwy PkgConfig::libxxhash $<BUILD_INTERFACE:Eigen3::Eigen>)

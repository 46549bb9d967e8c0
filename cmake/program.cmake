# The program `tessera`.
find_package(CLI11 CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
file(GLOB_RECURSE tessera_cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.cpp)
list(REMOVE_ITEM tessera_cli_sources ${PROJECT_SOURCE_DIR}/cli/main.cpp)
tessera_together(tessera_cli_sources cli 6)
# The page that --html fills, as data of the program.
file(GLOB tessera_page_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/report/*)
add_custom_command(
  OUTPUT ${PROJECT_BINARY_DIR}/generated/html_page.cpp
  COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR}/cli/report
          -D DESTINATION=${PROJECT_BINARY_DIR}/generated/html_page.cpp -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
  DEPENDS ${tessera_page_sources} ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
  COMMENT "Embedding the page of --html")
list(APPEND tessera_cli_sources ${PROJECT_BINARY_DIR}/generated/html_page.cpp)
# The clusters that `tessera plan --cluster NAME` knows: their files, as texts in the program.
file(GLOB tessera_clusters CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/clusters/*.yaml)
set(tessera_cluster_rows "")
foreach(cluster IN LISTS tessera_clusters)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${cluster})
  cmake_path(GET cluster STEM name)
  file(READ ${cluster} text)
  string(APPEND tessera_cluster_rows "      {\"${name}\", R\"cluster(${text})cluster\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/shipped_clusters.cpp @ONLY CONTENT [[
// Made from clusters/*.yaml.
#include "cli/cluster_file.h"

namespace tessera::cli {

const std::vector<ShippedCluster>& shipped_clusters() {
  static const std::vector<ShippedCluster> clusters = {
@tessera_cluster_rows@  };
  return clusters;
}

}  // namespace tessera::cli
]])
list(APPEND tessera_cli_sources ${PROJECT_BINARY_DIR}/shipped_clusters.cpp)
add_library(tessera_cli STATIC ${tessera_cli_sources})
target_link_libraries(tessera_cli PUBLIC tessera CLI11::CLI11 yaml-cpp PRIVATE tessera_settings)
add_executable(tessera_program ${PROJECT_SOURCE_DIR}/cli/main.cpp)
set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_link_libraries(tessera_program PRIVATE tessera_cli tessera_settings)
# `tessera bench` times the same bare products as the benchmarks do.
target_sources(tessera_cli PRIVATE ${PROJECT_SOURCE_DIR}/bench/bare_products.cpp)
target_link_libraries(tessera_cli PRIVATE DNNL::dnnl)

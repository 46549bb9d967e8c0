# The program `tessera`: a library for each of its floors, and `main`.
find_package(CLI11 CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
set(tessera_program_floors launch training planner logs bench cli)  # from the ground up
foreach(floor IN LISTS tessera_program_floors)
  file(GLOB_RECURSE tessera_${floor}_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${floor}/*.cpp)
endforeach()
# The rest of bench/ are separate programs (cmake/benchmarks.cmake).
list(FILTER tessera_bench_sources INCLUDE REGEX "/bench/harness/")
list(REMOVE_ITEM tessera_bench_sources ${PROJECT_SOURCE_DIR}/bench/harness/bare_products.cpp)
list(REMOVE_ITEM tessera_cli_sources ${PROJECT_SOURCE_DIR}/cli/main.cpp)
foreach(floor IN LISTS tessera_program_floors)
  tessera_together(tessera_${floor}_sources ${floor} 6)
endforeach()
# The page that --html fills, as data of the program.
file(GLOB tessera_page_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/report/*)
add_custom_command(
  OUTPUT ${PROJECT_BINARY_DIR}/generated/html_page.cpp
  COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR}/cli/report
          -D DESTINATION=${PROJECT_BINARY_DIR}/generated/html_page.cpp -P ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
  DEPENDS ${tessera_page_sources} ${PROJECT_SOURCE_DIR}/cmake/embed_page.cmake
  COMMENT "Embedding the page of --html")
list(APPEND tessera_cli_sources ${PROJECT_BINARY_DIR}/generated/html_page.cpp)
# The clusters of `tessera plan --cluster NAME`: their files are embedded in the program as texts.
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
#include "planner/cluster_file.h"

namespace tessera::planner {

const std::vector<ShippedCluster>& shipped_clusters() {
  static const std::vector<ShippedCluster> clusters = {
@tessera_cluster_rows@  };
  return clusters;
}

}  // namespace tessera::planner
]])
list(APPEND tessera_planner_sources ${PROJECT_BINARY_DIR}/shipped_clusters.cpp)
set(below tessera)
foreach(floor IN LISTS tessera_program_floors)
  add_library(tessera_${floor} STATIC ${tessera_${floor}_sources})
  target_link_libraries(tessera_${floor} PUBLIC ${below} PRIVATE tessera_settings)
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT floor STREQUAL "planner")
    set_target_properties(tessera_${floor} PROPERTIES TESSERA_OPTIMISATION -O1)  # it reads, writes and waits
  endif()
  set(below tessera_${floor})
endforeach()
target_link_libraries(tessera_training PUBLIC yaml-cpp)
target_link_libraries(tessera_bench PRIVATE tessera_bare_products)
target_link_libraries(tessera_cli PUBLIC CLI11::CLI11)
add_executable(tessera_program ${PROJECT_SOURCE_DIR}/cli/main.cpp)
set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_link_libraries(tessera_program PRIVATE tessera_cli tessera_settings)

# The program `tessera`.
find_package(CLI11 CONFIG REQUIRED)
find_package(yaml-cpp CONFIG REQUIRED)
file(GLOB_RECURSE tessera_cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.cpp)
list(REMOVE_ITEM tessera_cli_sources ${PROJECT_SOURCE_DIR}/cli/main.cpp)
tessera_together(tessera_cli_sources cli 6)
add_library(tessera_cli STATIC ${tessera_cli_sources})
target_link_libraries(tessera_cli PUBLIC tessera CLI11::CLI11 yaml-cpp PRIVATE tessera_settings)
add_executable(tessera_program ${PROJECT_SOURCE_DIR}/cli/main.cpp)
set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_link_libraries(tessera_program PRIVATE tessera_cli tessera_settings)
# `tessera bench` times the same bare products as the benchmarks do.
target_sources(tessera_cli PRIVATE ${PROJECT_SOURCE_DIR}/bench/bare_products.cpp)
target_link_libraries(tessera_cli PRIVATE DNNL::dnnl)

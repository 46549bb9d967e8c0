# The program `tessera`.
find_package(CLI11 CONFIG REQUIRED)
file(GLOB_RECURSE tessera_cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.cpp)
list(REMOVE_ITEM tessera_cli_sources ${PROJECT_SOURCE_DIR}/cli/main.cpp)
tessera_together(tessera_cli_sources cli 6)
add_library(tessera_cli STATIC ${tessera_cli_sources})
target_compile_definitions(tessera_cli PRIVATE TESSERA_VERSION="${PROJECT_VERSION}")
target_link_libraries(tessera_cli PUBLIC tessera CLI11::CLI11 yaml-cpp PRIVATE tessera_settings)
add_executable(tessera_program ${PROJECT_SOURCE_DIR}/cli/main.cpp)
set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
                      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_link_libraries(tessera_program PRIVATE tessera_cli tessera_settings)
install(TARGETS tessera_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# `cmake --install`: the program, the library, its headers and the package `Tessera` for find_package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(tessera_include_folder ${CMAKE_INSTALL_INCLUDEDIR}/tessera-${PROJECT_VERSION})
set(tessera_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)

install(TARGETS tessera EXPORT TesseraTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${tessera_include_folder})
# Headers name each other by their path from the repository root, and so they are installed.
foreach(floor IN ITEMS kernels engine sharding checkpoint models tessera)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${floor} DESTINATION ${tessera_include_folder}
          FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE)
endforeach()

install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${tessera_package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in
  ${CMAKE_BINARY_DIR}/TesseraConfig.cmake INSTALL_DESTINATION ${tessera_package_folder})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TesseraConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TesseraConfig.cmake ${CMAKE_BINARY_DIR}/TesseraConfigVersion.cmake
        DESTINATION ${tessera_package_folder})

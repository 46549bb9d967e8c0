# Debian packages by `cpack -G DEB` (scripts/package-deb): `tessera`, the program, and `libtessera-dev`, the library for
# others with what they need to build and link against it.
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VENDOR "The Tessera contributors")
set(CPACK_PACKAGE_CONTACT "The Tessera contributors")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "The program that trains, launches ranks and generates.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "The library, its headers, and its packages for CMake and pkg-config.")

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME tessera)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# ocl-icd-opencl-dev: oneDNN's CMake package looks for OpenCL, and libdnnl-dev does not bring it.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libdnnl-dev, ocl-icd-opencl-dev, libhwy-dev, libxxhash-dev, libfmt-dev, nlohmann-json3-dev, pkg-config")
if(tessera_library_type STREQUAL "SHARED_LIBRARY")
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", tessera (= ${PROJECT_VERSION})")  # the library itself is there
endif()
include(CPack)

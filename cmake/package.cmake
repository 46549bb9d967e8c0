# Debian packages by `cpack -G DEB`: `tessera` is the program, `libtessera-dev` is for building and linking with the
# library. scripts/package-deb makes them with a shared library, which is in the first package and contains the CUDA
# runtime. Users who link an archive that was built with CUDA need a CUDA Toolkit.
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
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS libonig5)  # loaded at run time
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libfmt-dev, nlohmann-json3-dev, libonig5")
if(tessera_library_type STREQUAL "SHARED_LIBRARY")
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS ", tessera (= ${PROJECT_VERSION})")
else()
  # ocl-icd-opencl-dev: oneDNN's CMake package looks for OpenCL, but libdnnl-dev does not depend on it. libprotobuf-dev:
  # the same is true of protobuf-lite and libsentencepiece-dev on Debian 13.
  string(APPEND CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
         ", libdnnl-dev, ocl-icd-opencl-dev, libhwy-dev, libxxhash-dev, libsodium-dev, libicu-dev, "
         "libpcre2-dev, libsentencepiece-dev, libprotobuf-dev, pkg-config")
endif()
include(CPack)

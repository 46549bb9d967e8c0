// The library's version. CMake reads these three numbers; every other mention of the version is
// derived from them.
#pragma once

#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 2
#define TESSERA_VERSION_PATCH 0

// For comparisons by the preprocessor: 0.2.1 is 201, 1.0.0 is 10000.
#define TESSERA_VERSION \
  (TESSERA_VERSION_MAJOR * 10000 + TESSERA_VERSION_MINOR * 100 + TESSERA_VERSION_PATCH)

namespace tessera {

// The version of the library that the program is linked with, such as "0.2.0". A shared library may
// be newer than the headers that the program was compiled with.
const char* version() noexcept;

}  // namespace tessera

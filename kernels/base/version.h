// The library's version; project() in CMakeLists.txt says the same.
#pragma once

namespace tessera {

inline constexpr const char* library_version = "0.1.0";

}  // namespace tessera

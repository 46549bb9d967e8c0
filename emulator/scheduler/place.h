// The place of a call in a kernel's source, for diagnostics.
#pragma once

#include <cstring>

namespace tessera::emulator {

// As a default argument, Place::here() is the line of the call. (clang 14 does not have
// std::source_location.)
struct Place {
  const char* file;
  int line;

  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// An operation of the device under CUDA's name for it, and the place of the kernel's call. The
// strings are never freed.
struct Operation {
  const char* name;
  Place place;
};

inline bool same_string(const char* a, const char* b) {
  return a == b || std::strcmp(a, b) == 0;
}
inline bool operator==(const Operation& a, const Operation& b) {
  return a.place.line == b.place.line && same_string(a.name, b.name) &&
         same_string(a.place.file, b.place.file);
}

}  // namespace tessera::emulator

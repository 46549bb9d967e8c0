// ASCII letters in lower case, whatever the locale is.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace tessera {

// Other characters, and the bytes of UTF-8, are unchanged.
inline std::string ascii_lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

}  // namespace tessera

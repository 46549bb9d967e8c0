// Escapes characters that could move the cursor, change colours or break a line.
#include "base/text/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace tessera {
namespace {

// The length of the UTF-8 character at the start, and its number; length 0 if it is not valid.
struct Decoded {
  std::size_t length = 0;
  std::uint32_t number = 0;
};

Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, first};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (length == 0 || first > 0xf4 || text.size() < length) return {};
  std::uint32_t number = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    number = (number << 6) | (byte(i) & 0x3fu);
  }
  const bool shortest = number >= (length == 2 ? 0x80u : length == 3 ? 0x800u : 0x10000u);
  const bool surrogate = number >= 0xd800 && number <= 0xdfff;
  return shortest && !surrogate && number <= 0x10ffff ? Decoded{length, number} : Decoded{};
}

// Includes characters that change the direction of the surrounding line.
bool is_control(std::uint32_t number) {
  return number < 0x20 || (number >= 0x7f && number < 0xa0) || number == 0x061c ||
         (number >= 0x200e && number <= 0x200f) || (number >= 0x2028 && number <= 0x202e) ||
         (number >= 0x2066 && number <= 0x2069);
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded decoded = decode(text);
    const std::size_t length = decoded.length == 0 ? 1 : decoded.length;
    const bool plain = decoded.length != 0 && !is_control(decoded.number);
    if (plain || kept.find(text.front()) != kept.npos) {
      out += text.substr(0, length);
    } else {
      for (const char c : text.substr(0, length)) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(text, "");
}

std::string printable_lines(std::string_view text) {
  return escaped(text, "\n\t");
}

}  // namespace tessera

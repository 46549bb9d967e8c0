// Characters as tokenizers see them. ICU knows the characters; what is here is which edition of
// Unicode each part of the `tokenizers` package was made with, because ids must not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

// One character of valid UTF-8 at `at`, which moves behind it.
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) -> char32_t { return static_cast<unsigned char>(text[i]); };
  const char32_t first = byte(at);
  if (first < 0x80) {
    at += 1;
    return first;
  }
  if (first < 0xe0) {
    at += 2;
    return ((first & 0x1f) << 6) | (byte(at - 1) & 0x3f);
  }
  if (first < 0xf0) {
    at += 3;
    return ((first & 0x0f) << 12) | ((byte(at - 2) & 0x3f) << 6) | (byte(at - 1) & 0x3f);
  }
  at += 4;
  return ((first & 0x07) << 18) | ((byte(at - 3) & 0x3f) << 12) | ((byte(at - 2) & 0x3f) << 6) |
         (byte(at - 1) & 0x3f);
}

// The bytes of the character that begins with `first`.
inline std::size_t character_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

inline bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

void append_character(std::string& text, char32_t character);

// The end of the leading ASCII characters from `at` on.
std::size_t ascii_end(std::string_view text, std::size_t at);

// Text as valid UTF-8: itself, or a copy in `copy` in which U+FFFD stands for what is none, one for
// each longest beginning of a character, as Python's errors="replace" and browsers have it.
std::string_view as_utf8(std::string_view text, std::string& copy);

// Unicode's White_Space, which all editions agree on.
bool is_white_space(char32_t character);
// General category N of the newest edition at hand.
bool is_numeric(char32_t character);
// \w of Unicode's regular expressions: alphabetic, marks, decimal digits, connectors, joiners.
bool is_word(char32_t character);

// By the tables of the crate unicode_categories, which are Unicode 8's: P with all of ASCII's
// signs; Cc, Cf, Co; Mn.
bool is_punctuation(char32_t character);
bool is_control(char32_t character);
bool is_nonspacing_mark(char32_t character);
// M of Unicode 9.
bool is_combining_mark(char32_t character);

void append_lowercase(std::string& text, char32_t character);

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
// By Unicode 9; younger characters are left as they are.
std::string normalize(std::string_view text, NormalForm form);
// Whether NFD changes the character or may move it.
bool moves_in_nfd(char32_t character);

// Visits the text's grapheme clusters in turn.
class GraphemeVisitor {
 public:
  virtual ~GraphemeVisitor() = default;
  virtual void visit(std::string_view grapheme) = 0;
};
void for_each_grapheme(std::string_view text, GraphemeVisitor& visitor);

}  // namespace tessera::tokenizers

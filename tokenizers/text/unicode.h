// Characters as tokenizers see them. ICU has the properties of characters. This file chooses the
// edition of Unicode that each part of the `tokenizers` package was made with, because ids must not
// depend on ICU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

// The character of valid UTF-8 at `at`, which moves behind it.
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

// Text as valid UTF-8: the text itself, or a copy in `copy` with U+FFFD for each longest prefix of
// an invalid character, as in Python's errors="replace" and in browsers.
std::string_view as_utf8(std::string_view text, std::string& copy);

// Unicode's White_Space, which is the same in all editions.
bool is_white_space(char32_t character);
// General category N of ICU's edition.
bool is_numeric(char32_t character);
// \w of Unicode's regular expressions: alphabetic, marks, decimal digits, connectors, joiners.
bool is_word(char32_t character);

// By the tables of the crate unicode_categories, which follow Unicode 8: P with all of ASCII's
// symbols; Cc, Cf, Co; Mn.
bool is_punctuation(char32_t character);
bool is_control(char32_t character);
bool is_nonspacing_mark(char32_t character);
// M of Unicode 9.
bool is_combining_mark(char32_t character);

// The writing system by Unicode 9, as a number of ICU's. USCRIPT_UNKNOWN, 103, for a character that
// Unicode 9 does not have.
int script_of(char32_t character);

void append_lowercase(std::string& text, char32_t character);

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
// By Unicode 9; newer characters are not changed.
std::string normalize(std::string_view text, NormalForm form);
// True if NFD changes the character or may move it.
bool moves_in_nfd(char32_t character);

// Visits the text's grapheme clusters in order.
class GraphemeVisitor {
 public:
  virtual ~GraphemeVisitor() = default;
  virtual void visit(std::string_view grapheme) = 0;
};
void for_each_grapheme(std::string_view text, GraphemeVisitor& visitor);

}  // namespace tessera::tokenizers

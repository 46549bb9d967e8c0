// Properties of characters are ICU's.
#include "tokenizers/chat/values/characters.h"

#include <unicode/locid.h>
#include <unicode/stringoptions.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "base/error.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

icu::UnicodeString units_of(std::string_view text) {
  return icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
}

std::string text_of(const icu::UnicodeString& units) {
  std::string text;
  units.toUTF8String(text);
  return text;
}

bool is_cased(char32_t character) {
  return u_hasBinaryProperty(static_cast<UChar32>(character), UCHAR_CASED) != 0;
}

// The first character in title case.
std::string title_of(std::string_view character) {
  return text_of(units_of(character).toTitle(nullptr, icu::Locale::getRoot(),
                                             U_TITLECASE_NO_BREAK_ADJUSTMENT));
}

bool contains(std::string_view characters, std::string_view one) {
  return characters.find(one) != std::string_view::npos;
}

bool has_property(char32_t character, std::string_view property) {
  const auto code = static_cast<UChar32>(character);
  const std::int32_t numeric = u_getIntPropertyValue(code, UCHAR_NUMERIC_TYPE);
  if (property == "space") return is_space(character);
  if (property == "ascii") return character < 0x80;
  if (property == "printable") return is_printable(character);
  if (property == "alpha") return (U_GET_GC_MASK(code) & U_GC_L_MASK) != 0;
  if (property == "decimal") return numeric == U_NT_DECIMAL;
  if (property == "digit") return numeric == U_NT_DECIMAL || numeric == U_NT_DIGIT;
  if (property == "numeric") return numeric != U_NT_NONE;
  if (property == "alnum") return (U_GET_GC_MASK(code) & U_GC_L_MASK) != 0 || numeric != U_NT_NONE;
  misuse("a property of characters {}", property);
}

// str.islower() and str.isupper(): the cased characters, of which there is one, have this case.
bool all_cased_are(std::string_view text, UProperty wanted) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t character = next_character(text, at);
    if (u_hasBinaryProperty(static_cast<UChar32>(character), wanted) != 0) {
      any = true;
    } else if (is_cased(character)) {
      return false;
    }
  }
  return any;
}

}  // namespace

bool is_space(char32_t character) {
  return is_white_space(character) || (character >= 0x1c && character <= 0x1f);
}

std::size_t spaces_end(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t behind = at;
    if (!is_space(next_character(text, behind))) break;
    at = behind;
  }
  return at;
}

std::string_view stripped_left(std::string_view text) {
  return text.substr(spaces_end(text, 0));
}

std::string_view stripped_right(std::string_view text) {
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && !starts_character(text[last])) --last;
    std::size_t at = last;
    if (!is_space(next_character(text, at))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view stripped_left(std::string_view text, std::string_view characters) {
  while (!text.empty() && contains(characters, text.substr(0, character_length(text.front())))) {
    text = text.substr(character_length(text.front()));
  }
  return text;
}

std::string_view stripped_right(std::string_view text, std::string_view characters) {
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && !starts_character(text[last])) --last;
    if (!contains(characters, text.substr(last))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::int64_t length_of(std::string_view text) {
  std::int64_t length = 0;
  for (const char byte : text) length += starts_character(byte) ? 1 : 0;
  return length;
}

std::size_t byte_of(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += character_length(text[at]);
  return at;
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size(); at += characters.back().size()) {
    characters.push_back(text.substr(at, character_length(text[at])));
  }
  return characters;
}

std::string upper(std::string_view text) {
  return text_of(units_of(text).toUpper(icu::Locale::getRoot()));
}

std::string lower(std::string_view text) {
  return text_of(units_of(text).toLower(icu::Locale::getRoot()));
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const std::string_view first = text.substr(0, character_length(text.front()));
  // In lower case a character depends on those before it (the last sigma of a word).
  const std::string whole = lower(text);
  const std::string begin = lower(first);
  const std::string rest =
      whole.starts_with(begin) ? whole.substr(begin.size()) : lower(text.substr(first.size()));
  return title_of(first) + rest;
}

std::string titled(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size()) {  // a run of cased characters is a word
      std::size_t behind = end;
      if (!is_cased(next_character(text, behind))) break;
      end = behind;
    }
    if (end > at) {
      result += capitalized(text.substr(at, end - at));
      at = end;
    } else {
      const std::size_t length = character_length(text[at]);
      result += text.substr(at, length);
      at += length;
    }
  }
  return result;
}

bool all_are(std::string_view text, std::string_view property) {
  if (property == "lower") return all_cased_are(text, UCHAR_LOWERCASE);
  if (property == "upper") return all_cased_are(text, UCHAR_UPPERCASE);
  if (property == "ascii" || property == "printable") {
    if (text.empty()) return true;
  } else if (text.empty()) {
    return false;
  }
  for (std::size_t at = 0; at < text.size();) {
    if (!has_property(next_character(text, at), property)) return false;
  }
  return true;
}

std::vector<std::string_view> lines_of(std::string_view text, bool keeps_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = next_character(text, at);
    const bool ends = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keeps_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool is_printable(char32_t character) {
  if (character == ' ') return true;
  const std::uint32_t hidden = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK |
                               U_GC_CN_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK | U_GC_ZS_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(character)) & hidden) == 0;
}

}  // namespace tessera::tokenizers::jinja

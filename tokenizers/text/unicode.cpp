// Based on ICU. A character's age tells whether an older edition of Unicode has it.
#include "tokenizers/text/unicode.h"

#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/uscript.h>
#include <unicode/utext.h>
#include <unicode/utf8.h>

#include <array>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace tessera::tokenizers {
namespace {

void check_icu(UErrorCode status, const char* what) {
  TESSERA_CHECK(U_SUCCESS(status), ErrorCode::runtime, "ICU: {}: {}", what, u_errorName(status));
}

bool known_to(char32_t character, int edition) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(character), age);
  return age[0] != 0 && (age[0] < edition || (age[0] == edition && age[1] == 0));
}

std::uint32_t category_of(char32_t character) {
  return U_MASK(u_charType(static_cast<UChar32>(character)));
}

// The category in Unicode 8 of characters whose category has changed since.
std::uint32_t category_in_unicode_8(char32_t character) {
  switch (character) {
    case 0x166D:   // Canadian syllabics chi sign
    case 0x111C9:  // Sharada sandhi mark
      return U_GC_PO_MASK;
    case 0x1734:  // Hanunoo pamudpod
      return U_GC_MN_MASK;
    case 0x1885:  // Mongolian baluda, three baluda
    case 0x1886:
      return U_GC_LO_MASK;
    case 0xA9BD:  // Javanese consonant sign keret
      return U_GC_MC_MASK;
    default:
      return known_to(character, 8) ? category_of(character) : U_GC_CN_MASK;
  }
}

// The forms as defined by Unicode 9.
struct NormalForms {
  NormalForms() {
    UErrorCode status = U_ZERO_ERROR;
    known.applyPattern("[:age=9.0:]", status);
    known.freeze();
    const auto make = [&](const icu::Normalizer2* newest) {
      check_icu(status, "normal forms");
      return std::make_unique<icu::FilteredNormalizer2>(*newest, known);
    };
    forms = {make(icu::Normalizer2::getNFCInstance(status)),
             make(icu::Normalizer2::getNFDInstance(status)),
             make(icu::Normalizer2::getNFKCInstance(status)),
             make(icu::Normalizer2::getNFKDInstance(status))};
  }
  icu::UnicodeSet known;
  std::array<std::unique_ptr<icu::FilteredNormalizer2>, 4> forms;
};

const icu::Normalizer2& normalizer_of(NormalForm form) {
  static const NormalForms forms;
  return *forms.forms.at(static_cast<std::size_t>(form));
}

}  // namespace

void append_character(std::string& text, char32_t character) {
  std::array<char, 4> bytes;
  int length = 0;
  U8_APPEND_UNSAFE(bytes.data(), length, static_cast<UChar32>(character));
  text.append(bytes.data(), static_cast<std::size_t>(length));
}

std::size_t ascii_end(std::string_view text, std::size_t at) {
  constexpr std::uint64_t high_bits = 0x8080808080808080u;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & high_bits) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

std::string_view as_utf8(std::string_view text, std::string& copy) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(text.data());
  const std::size_t size = text.size();
  std::size_t kept = 0;  // copied up to here
  bool valid = true;
  for (std::size_t at = ascii_end(text, 0); at < size; at = ascii_end(text, at)) {
    // ICU's macros count in 32 bits.
    const auto limit = static_cast<std::int32_t>(std::min<std::size_t>(size - at, 4));
    std::int32_t length = 0;
    UChar32 character = 0;
    U8_NEXT(bytes + at, length, limit, character);
    if (character < 0) {
      if (valid) copy.clear();
      valid = false;
      copy.append(text, kept, at - kept);
      copy += "\xEF\xBF\xBD";
      kept = at + static_cast<std::size_t>(length);
    }
    at += static_cast<std::size_t>(length);
  }
  if (valid) return text;
  copy.append(text, kept);
  return copy;
}

bool is_white_space(char32_t character) {
  return u_isUWhiteSpace(static_cast<UChar32>(character)) != 0;
}

bool is_numeric(char32_t character) {
  return (category_of(character) & U_GC_N_MASK) != 0;
}

bool is_word(char32_t character) {
  return u_hasBinaryProperty(static_cast<UChar32>(character), UCHAR_POSIX_ALNUM) != 0 ||
         (category_of(character) & (U_GC_M_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(static_cast<UChar32>(character), UCHAR_JOIN_CONTROL) != 0;
}

bool is_punctuation(char32_t character) {
  if (character < 0x80)
    return u_ispunct(static_cast<UChar32>(character)) != 0 ||
           std::string_view("$+<=>^`|~").find(static_cast<char>(character)) !=
               std::string_view::npos;
  return (category_in_unicode_8(character) & U_GC_P_MASK) != 0;
}

bool is_control(char32_t character) {
  return (category_in_unicode_8(character) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0;
}

bool is_nonspacing_mark(char32_t character) {
  return (category_in_unicode_8(character) & U_GC_MN_MASK) != 0;
}

bool is_combining_mark(char32_t character) {
  switch (character) {
    case 0x1CF2:  // Vedic ardhavisarga, and its rotated form
    case 0x1CF3:
      return true;
    case 0x111C9:  // Sharada sandhi mark
      return false;
    default:
      return (category_of(character) & U_GC_M_MASK) != 0 && known_to(character, 9);
  }
}

int script_of(char32_t character) {
  switch (character) {
    case 0x589:  // Armenian full stop
    case 0x61C:  // Arabic letter mark
      return USCRIPT_COMMON;
    case 0x953:  // Devanagari grave and acute accents
    case 0x954:
      return USCRIPT_DEVANAGARI;
    default: {
      if (!known_to(character, 9)) return USCRIPT_UNKNOWN;
      UErrorCode status = U_ZERO_ERROR;
      const int script = uscript_getScript(static_cast<UChar32>(character), &status);
      check_icu(status, "uscript_getScript");
      return script;
    }
  }
}

void append_lowercase(std::string& text, char32_t character) {
  if (character == 0x130) {  // the only character that becomes two
    text += "i\xCC\x87";
    return;
  }
  append_character(text, static_cast<char32_t>(u_tolower(static_cast<UChar32>(character))));
}

std::string normalize(std::string_view text, NormalForm form) {
  std::string out;
  UErrorCode status = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&out);
  const icu::Normalizer2& normalizer = normalizer_of(form);
  TESSERA_CHECK(text.size() < (std::size_t{1} << 31), ErrorCode::data,
                "a text of {} bytes is too long to be normalised at once; split it into lines",
                text.size());
  normalizer.normalizeUTF8(0, {text.data(), static_cast<std::int32_t>(text.size())}, sink, nullptr,
                           status);
  check_icu(status, "normalizeUTF8");
  return out;
}

bool moves_in_nfd(char32_t character) {
  const auto point = static_cast<UChar32>(character);
  return u_getIntPropertyValue(point, UCHAR_NFD_QUICK_CHECK) != UNORM_YES ||
         u_getCombiningClass(point) != 0;
}

void for_each_grapheme(std::string_view text, GraphemeVisitor& visitor) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  check_icu(status, "graphemes");
  UText* const source =
      utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status);
  check_icu(status, "graphemes of a text");
  const std::unique_ptr<UText, decltype(&utext_close)> owner(source, utext_close);
  breaks->setText(source, status);
  check_icu(status, "graphemes of a text");
  std::int32_t begin = breaks->first();
  for (std::int32_t end = breaks->next(); end != icu::BreakIterator::DONE; end = breaks->next()) {
    visitor.visit(
        text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
    begin = end;
  }
}

}  // namespace tessera::tokenizers

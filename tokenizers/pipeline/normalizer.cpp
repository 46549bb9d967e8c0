// The types of normalizers, and the short ones.
#include "tokenizers/pipeline/normalizer.h"

#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizers/text/byte_alphabet.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

using nlohmann::json;

// Normal forms do not change ASCII.
template <NormalForm form>
class UnicodeForm final : public Normalizer {
 public:
  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    if (ascii_end(text, 0) == text.size()) return text;
    buffer = normalize(text, form);
    return buffer;
  }
};

// Maps each character by a function that appends the result.
template <void (*append)(std::string& out, char32_t character)>
class EachCharacter final : public Normalizer {
 public:
  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    buffer.clear();
    for (std::size_t at = 0; at < text.size();) append(buffer, next_character(text, at));
    return buffer;
  }
};

void without_mark(std::string& out, char32_t character) {
  if (!is_combining_mark(character)) append_character(out, character);
}

// The cleaning in Google's translation systems.
void clean_for_translation(std::string& out, char32_t c) {
  const bool dropped = (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
                       c == 0x8F || c == 0x9F;
  if (dropped) return;
  const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  append_character(out, space ? U' ' : c);
}

class Strip final : public Normalizer {
 public:
  Strip(const json& object, const std::string& source)
      : left_(bool_or(object, "strip_left", true, source)),
        right_(bool_or(object, "strip_right", true, source)) {}
  [[nodiscard]] std::string_view apply(std::string_view text, std::string&) const override {
    std::size_t begin = 0;
    for (std::size_t at = 0; left_ && at < text.size();) {
      if (!is_white_space(next_character(text, at))) break;
      begin = at;
    }
    std::size_t end = text.size();
    while (right_ && end > begin) {
      std::size_t last = end - 1;
      while (!starts_character(text[last])) --last;
      std::size_t at = last;
      if (!is_white_space(next_character(text, at))) break;
      end = last;
    }
    return text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

class Prepend final : public Normalizer {
 public:
  Prepend(const json& object, const std::string& source)
      : prefix_(string_of(object, "prepend", source)) {}
  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    if (text.empty()) return text;
    buffer = prefix_;
    buffer += text;
    return buffer;
  }

 private:
  std::string prefix_;
};

class ByteNormalizer final : public Normalizer {
 public:
  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    buffer = byte_alphabet().write(text);
    return buffer;
  }
};

class NormalizerSequence final : public Normalizer {
 public:
  NormalizerSequence(const json& object, const std::string& source) { add(object, source); }
  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    std::string other;
    std::string* free = &buffer;  // the buffer that does not hold the current text
    std::string* used = &other;
    // Repeated steps that replace a character by several could grow the text without limit.
    const std::size_t longest = 256 * text.size() + 65536;
    for (const auto& step : steps_) {
      const std::string_view next = step->apply(text, *free);
      // A step may return a part of its input, which then stays in its buffer.
      const bool written =
          next.data() >= free->data() && next.data() <= free->data() + free->size();
      text = next;
      TESSERA_CHECK(text.size() <= longest, ErrorCode::data,
                    "the tokenizer's normalizers make a text more than 256 times as long");
      if (written && !next.empty()) std::swap(free, used);
    }
    if (used == &other && text.data() >= other.data() &&
        text.data() <= other.data() + other.size() && !text.empty()) {
      buffer.assign(text);
      return buffer;
    }
    return text;
  }
  [[nodiscard]] bool drops_beginning(std::string_view text) const override {
    std::string current(text);
    std::string buffer;
    for (const auto& step : steps_) {
      if (step->drops_beginning(current)) return true;
      current = std::string(step->apply(current, buffer));
    }
    return false;
  }

 private:
  // Flattens nested sequences into one list, so that one limit holds for all of them.
  void add(const json& object, const std::string& source) {
    const json& listed = member(object, "normalizers", source);
    TESSERA_CHECK(listed.is_array(), ErrorCode::data, "{}: 'normalizers' is not a list", source);
    for (std::size_t i = 0; i < listed.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", source, i);
      if (type_of(listed[i], place) == "Sequence") {
        add(listed[i], place);
      } else {
        steps_.push_back(make_normalizer(listed[i], place));
      }
    }
  }

  std::vector<std::unique_ptr<Normalizer>> steps_;
};

template <class Made>
std::unique_ptr<Normalizer> plain(const json&, const std::string&) {
  return std::make_unique<Made>();
}
template <class Made>
std::unique_ptr<Normalizer> configured(const json& object, const std::string& source) {
  return std::make_unique<Made>(object, source);
}

struct NormalizerType {
  const char* name;
  std::unique_ptr<Normalizer> (*make)(const json&, const std::string&);
};

constexpr std::array<NormalizerType, 14> normalizer_types = {{
    {"BertNormalizer", make_bert_normalizer},
    {"NFC", plain<UnicodeForm<NormalForm::nfc>>},
    {"NFD", plain<UnicodeForm<NormalForm::nfd>>},
    {"NFKC", plain<UnicodeForm<NormalForm::nfkc>>},
    {"NFKD", plain<UnicodeForm<NormalForm::nfkd>>},
    {"Lowercase", plain<EachCharacter<append_lowercase>>},
    {"StripAccents", plain<EachCharacter<without_mark>>},
    {"Nmt", plain<EachCharacter<clean_for_translation>>},
    {"Strip", configured<Strip>},
    {"Prepend", configured<Prepend>},
    {"Replace", make_replacement},
    {"Precompiled", make_precompiled},
    {"ByteLevel", plain<ByteNormalizer>},
    {"Sequence", configured<NormalizerSequence>},
}};

}  // namespace

bool Normalizer::drops_beginning(std::string_view text) const {
  if (text.empty()) return false;
  // Tries the first character with a letter behind it, so that it is not at the end of the text.
  const std::string alone = std::string(text.substr(0, character_length(text.front()))) + 'a';
  std::string buffer;
  std::string other;
  return apply(alone, buffer) == apply("a", other);
}

std::unique_ptr<Normalizer> make_normalizer(const json& object, const std::string& source) {
  const std::string type = type_of(object, source);
  std::string names;
  for (const NormalizerType& known : normalizer_types) {
    if (type == known.name) return known.make(object, source);
    names += names.empty() ? known.name : fmt::format(", {}", known.name);
  }
  fail(ErrorCode::data, "{}: normalizer type '{}' is not supported; there are {}", source,
       shown(type), names);
}

}  // namespace tessera::tokenizers

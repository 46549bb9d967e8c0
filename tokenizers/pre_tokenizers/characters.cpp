// Pre-tokenizers that look at one character at a time.
#include <unicode/uscript.h>

#include <optional>

#include "base/error.h"
#include "tokenizers/pipeline/pre_tokenizer.h"
#include "tokenizers/pre_tokenizers/delimiters.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

// Drops white space, and separates each punctuation mark.
class BertStage final : public PreTokenizerStage {
 public:
  BertStage() {
    for (char32_t c = 0; c < 128; ++c) {
      ascii_[c] = is_white_space(c) ? Kind::space : is_punctuation(c) ? Kind::mark : Kind::letter;
    }
  }
  void take(const Piece& piece) override {
    const std::string_view text = piece.text;
    std::size_t word = 0;  // where the current word begins
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const Kind kind = kind_of(text, at);
      if (kind == Kind::letter) continue;
      give(text.substr(word, begin - word), piece.first && word == 0);
      if (kind == Kind::mark) give(text.substr(begin, at - begin), piece.first && begin == 0);
      word = at;
    }
    give(text.substr(word), piece.first && word == 0);
  }

 private:
  enum class Kind : std::uint8_t { letter, space, mark };
  Kind kind_of(std::string_view text, std::size_t& at) const {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      return ascii_[static_cast<unsigned char>(text[at++])];
    }
    const char32_t c = next_character(text, at);
    return is_white_space(c) ? Kind::space : is_punctuation(c) ? Kind::mark : Kind::letter;
  }
  std::array<Kind, 128> ascii_{};
};

// Cuts at the characters for which `is_delimiter` is true.
template <class IsDelimiter>
class CharacterStage final : public PreTokenizerStage {
 public:
  CharacterStage(DelimiterBehavior behavior, IsDelimiter is_delimiter)
      : behavior_(behavior), is_delimiter_(is_delimiter) {}
  void take(const Piece& piece) override {
    const std::string_view text = piece.text;
    DelimiterMerger merger(behavior_, [&](std::size_t begin, std::size_t end) {
      give(text.substr(begin, end - begin), piece.first && begin == 0);
    });
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      if (!is_delimiter_(next_character(text, at))) continue;
      if (done < begin) merger.part(done, begin, false);
      merger.part(begin, at, true);
      done = at;
    }
    if (done < text.size()) merger.part(done, text.size(), false);
    merger.finish();
  }

 private:
  DelimiterBehavior behavior_;
  IsDelimiter is_delimiter_;
};

template <class IsDelimiter>
MakeStage character_stage(DelimiterBehavior behavior, IsDelimiter is_delimiter) {
  return [=] { return std::make_unique<CharacterStage<IsDelimiter>>(behavior, is_delimiter); };
}

// Runs of word characters and runs of others; drops white space.
class WhitespaceStage final : public PreTokenizerStage {
 public:
  void take(const Piece& piece) override {
    const std::string_view text = piece.text;
    std::size_t begin = 0;
    Kind run = Kind::space;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t here = at;
      const char32_t c = next_character(text, at);
      const Kind kind = is_word(c) ? Kind::word : is_white_space(c) ? Kind::space : Kind::other;
      if (kind == run) continue;
      finish(piece, run, begin, here);
      begin = here;
      run = kind;
    }
    finish(piece, run, begin, text.size());
  }

 private:
  enum class Kind : std::uint8_t { word, space, other };
  void finish(const Piece& piece, Kind run, std::size_t begin, std::size_t end) {
    if (run == Kind::space) return;
    give(piece.text.substr(begin, end - begin), piece.first && begin == 0);
  }
};

// Cuts where the writing system changes. Japanese syllables count as Han. A space, and a character
// that Unicode 9 does not have, belong to what is before them, and are dropped at the beginning.
class ScriptsStage final : public PreTokenizerStage {
 public:
  void take(const Piece& piece) override {
    const std::string_view text = piece.text;
    std::optional<int> script;  // of the current part
    std::size_t part = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const int next = merged_script(next_character(text, at));
      if (next == USCRIPT_UNKNOWN || next == script) continue;
      if (script) give(text.substr(part, begin - part), piece.first && part == 0);
      part = begin;
      script = next;
    }
    if (script) give(text.substr(part), piece.first && part == 0);
  }

 private:
  static int merged_script(char32_t c) {
    constexpr char32_t long_vowel = 0x30FC;
    if (c == ' ') return USCRIPT_UNKNOWN;
    const int script = c < 0x80 ? ascii_script(c) : script_of(c);
    const bool kana = script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA || c == long_vowel;
    return kana ? USCRIPT_HAN : script;
  }
  static int ascii_script(char32_t c) {
    const char32_t lower = c | 0x20;
    return lower >= 'a' && lower <= 'z' ? USCRIPT_LATIN : USCRIPT_COMMON;
  }
};

class FixedLengthStage final : public PreTokenizerStage {
 public:
  explicit FixedLengthStage(std::int64_t length) : length_(length) {}
  void take(const Piece& piece) override {
    const std::string_view text = piece.text;
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = begin;
      for (std::int64_t i = 0; i < length_ && end < text.size(); ++i) {
        end += character_length(text[end]);
      }
      give(text.substr(begin, end - begin), piece.first && begin == 0);
      begin = end;
    }
  }

 private:
  std::int64_t length_;
};

}  // namespace

MakeStage make_bert_stage(const nlohmann::json&, const std::string&) {
  return [] { return std::make_unique<BertStage>(); };
}

MakeStage make_whitespace_stage(const nlohmann::json&, const std::string&) {
  return [] { return std::make_unique<WhitespaceStage>(); };
}

MakeStage make_whitespace_split_stage(const nlohmann::json&, const std::string&) {
  return character_stage(DelimiterBehavior::removed, [](char32_t c) { return is_white_space(c); });
}

MakeStage make_punctuation_stage(const nlohmann::json& object, const std::string& source) {
  return character_stage(delimiter_behavior(object, "Isolated", source),
                         [](char32_t c) { return is_punctuation(c); });
}

MakeStage make_digits_stage(const nlohmann::json& object, const std::string& source) {
  const bool alone = bool_or(object, "individual_digits", false, source);
  return character_stage(alone ? DelimiterBehavior::isolated : DelimiterBehavior::contiguous,
                         [](char32_t c) { return is_numeric(c); });
}

MakeStage make_delimiter_stage(const nlohmann::json& object, const std::string& source) {
  const std::string text = string_of(object, "delimiter", source);
  TESSERA_CHECK(!text.empty() && character_length(text[0]) == text.size(), ErrorCode::data,
                "{}: 'delimiter' is not one character", source);
  std::size_t at = 0;
  const char32_t delimiter = next_character(text, at);
  return character_stage(DelimiterBehavior::removed,
                         [delimiter](char32_t c) { return c == delimiter; });
}

MakeStage make_scripts_stage(const nlohmann::json&, const std::string&) {
  return [] { return std::make_unique<ScriptsStage>(); };
}

MakeStage make_fixed_length_stage(const nlohmann::json& object, const std::string& source) {
  const std::int64_t length = integer_or(object, "length", 5, 1, 1 << 30, source);
  return [length] { return std::make_unique<FixedLengthStage>(length); };
}

}  // namespace tessera::tokenizers

// BERT's normaliser, in one pass over the text: removes control characters, replaces white space by
// a space, separates Chinese characters, removes accents, lowercases.
#include <array>

#include "tokenizers/pipeline/normalizer.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

// The blocks that BERT's authors called Chinese.
bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer final : public Normalizer {
 public:
  BertNormalizer(const nlohmann::json& object, const std::string& source) {
    clean_text_ = bool_or(object, "clean_text", true, source);
    chinese_ = bool_or(object, "handle_chinese_chars", true, source);
    lowercase_ = bool_or(object, "lowercase", true, source);
    strip_accents_ = bool_or(object, "strip_accents", lowercase_, source);
    for (std::size_t c = 0; c < ascii_.size(); ++c) {
      char mapped = static_cast<char>(c);
      if (clean_text_) {
        const bool space = c == ' ' || (c >= 9 && c <= 13);
        if (c == 11 || c == 12 || (c < 32 && !space) || c == 127)
          mapped = '\0';
        else if (space)
          mapped = ' ';
      }
      if (lowercase_ && c >= 'A' && c <= 'Z') mapped = static_cast<char>(c - 'A' + 'a');
      ascii_[c] = mapped;
    }
  }

  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    buffer.clear();
    buffer.reserve(text.size() + text.size() / 8);
    std::string run;  // characters beyond ASCII, among which accents may move
    bool moves = false;
    const auto flush = [&] {
      if (!run.empty()) append_run(run, moves, buffer);
      run.clear();
      moves = false;
    };
    for (std::size_t at = 0; at < text.size();) {
      if (static_cast<unsigned char>(text[at]) < 0x80) {
        flush();
        const std::size_t end = ascii_end(text, at);
        append_ascii(text.substr(at, end - at), buffer);
        at = end;
        continue;
      }
      const char32_t c = next_character(text, at);
      if (clean_text_ && (c == 0xFFFD || is_control(c))) continue;
      if (clean_text_ && is_white_space(c)) {
        flush();
        buffer += ' ';
        continue;
      }
      const bool alone = chinese_ && is_chinese(c);
      if (alone) {
        flush();
        buffer += ' ';
      }
      append_character(run, c);
      moves = moves || (strip_accents_ && moves_in_nfd(c));
      if (alone) {
        flush();
        buffer += ' ';
      }
    }
    flush();
    return buffer;
  }

 private:
  void append_ascii(std::string_view text, std::string& out) const {
    for (const char byte : text) {
      const char mapped = ascii_[static_cast<unsigned char>(byte)];
      // A NUL is kept only if the text is not cleaned.
      if (mapped != '\0' || !clean_text_) out += mapped;
    }
  }

  void append_run(const std::string& run, bool moves, std::string& out) const {
    const std::string decomposed = moves ? normalize(run, NormalForm::nfd) : std::string();
    const std::string_view text = moves ? decomposed : run;
    for (std::size_t at = 0; at < text.size();) {
      const char32_t c = next_character(text, at);
      if (strip_accents_ && is_nonspacing_mark(c)) continue;
      if (lowercase_) {
        append_lowercase(out, c);
      } else {
        append_character(out, c);
      }
    }
  }

  bool clean_text_ = true;
  bool chinese_ = true;
  bool strip_accents_ = true;
  bool lowercase_ = true;
  std::array<char, 128> ascii_{};  // '\0': dropped
};

}  // namespace

std::unique_ptr<Normalizer> make_bert_normalizer(const nlohmann::json& object,
                                                 const std::string& source) {
  return std::make_unique<BertNormalizer>(object, source);
}

}  // namespace tessera::tokenizers

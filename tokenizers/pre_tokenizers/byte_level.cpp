// ByteLevel: GPT-2's words, then each byte as a character of its alphabet. If the vocabulary is
// also kept in bytes, bytes are not changed.
#include "base/error.h"
#include "tokenizers/pipeline/pre_tokenizer.h"
#include "tokenizers/text/byte_alphabet.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/pattern.h"

namespace tessera::tokenizers {
namespace {

constexpr const char* gpt2_words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct ByteLevelSettings {
  Pattern words;
  bool prefix_space;
  bool use_words;
  bool write_alphabet;
};

class ByteLevelStage final : public PreTokenizerStage {
 public:
  explicit ByteLevelStage(std::shared_ptr<const ByteLevelSettings> settings)
      : settings_(std::move(settings)), matcher_(settings_->words) {}

  void take(const Piece& piece) override {
    std::string_view text = piece.text;
    if (settings_->prefix_space && !text.starts_with(' ')) {
      prefixed_ = ' ';
      prefixed_ += text;
      text = prefixed_;
    }
    if (!settings_->use_words) {
      write(text, piece.first);
      return;
    }
    Pattern::Matcher::Match match;
    std::size_t done = 0;
    while (done < text.size() && matcher_.find(text, done, match)) {
      write(text.substr(done, match.begin - done), piece.first && done == 0);
      write(text.substr(match.begin, match.end - match.begin), piece.first && match.begin == 0);
      done = match.end;
    }
    write(text.substr(done), piece.first && done == 0);
  }

 private:
  void write(std::string_view word, bool first) {
    if (!settings_->write_alphabet || word.empty()) {
      give(word, first);
      return;
    }
    written_ = byte_alphabet().write(word);
    TESSERA_CHECK(written_.size() <= std::size_t{1} << 30, ErrorCode::data,
                  "the tokenizer's pre-tokenizers make a word of more than 1 GiB");
    give(written_, first);
  }

  std::shared_ptr<const ByteLevelSettings> settings_;
  Pattern::Matcher matcher_;
  std::string prefixed_;
  std::string written_;
};

}  // namespace

MakeStage make_byte_level_stage(const nlohmann::json& object, bool bytes_as_they_are,
                                const std::string& source) {
  const auto settings = std::make_shared<const ByteLevelSettings>(ByteLevelSettings{
      Pattern(gpt2_words, source), bool_or(object, "add_prefix_space", true, source),
      bool_or(object, "use_regex", true, source), !bytes_as_they_are});
  return [settings] { return std::make_unique<ByteLevelStage>(settings); };
}

}  // namespace tessera::tokenizers

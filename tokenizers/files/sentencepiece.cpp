// Reads SentencePiece's .model with the library itself.
#include <sentencepiece_processor.h>

#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/trie.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;

class SentencePiece final : public Tokenizer {
 public:
  SentencePiece(const fs::path& path, const std::string& contents)
      : name_(path.filename().string()) {
    const auto status = processor_.LoadFromSerializedProto(contents);
    TESSERA_CHECK(status.ok() && processor_.GetPieceSize() > 0, ErrorCode::data,
                  "'{}' is not a SentencePiece model, or it is damaged", path.string());
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      check_walk(processor_.IdToPiece(id), fmt::format("'{}'", path.string()));
    }
    fingerprint_ = fingerprint_of(contents);
    read_configuration(path.parent_path());
  }

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return processor_.GetPieceSize(); }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
    std::string copy;
    std::vector<int> ids;
    const auto status = processor_.Encode(as_utf8(text, copy), &ids);
    TESSERA_CHECK(status.ok(), ErrorCode::data, "tokenizer {}: {}", name_, status.message());
    return ids;
  }
  [[nodiscard]] std::vector<std::int32_t> encode_sequence(std::string_view text,
                                                          std::int64_t max_length) const override {
    std::vector<std::int32_t> ids = encode(text);
    const std::int64_t added = template_.added();
    TESSERA_CHECK(max_length <= 0 || max_length >= added, ErrorCode::configuration,
                  "sequences of at most {} tokens have no room for the {} special tokens of "
                  "tokenizer {}",
                  max_length, added, name_);
    if (max_length > 0 && std::cmp_greater(ids.size(), max_length - added)) {
      ids.resize(static_cast<std::size_t>(max_length - added));
    }
    return template_.apply(std::move(ids));
  }
  [[nodiscard]] std::int32_t padding_id() const override {
    if (processor_.pad_id() >= 0) return processor_.pad_id();
    return processor_.eos_id() >= 0 ? processor_.eos_id() : 0;
  }
  [[nodiscard]] std::optional<std::int32_t> end_of_text() const override {
    return processor_.eos_id() >= 0 ? std::optional(processor_.eos_id()) : std::nullopt;
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      TESSERA_CHECK(ids[i] >= 0 && ids[i] < processor_.GetPieceSize(), ErrorCode::data,
                    "token {} at position {} is not in the vocabulary of {} tokens", ids[i], i,
                    processor_.GetPieceSize());
    }
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    TESSERA_CHECK(status.ok(), ErrorCode::data, "tokenizer {}: {}", name_, status.message());
    return text;
  }

 private:
  // The model does not contain the tokens around a sequence: the tokenizer's class adds them.
  void read_configuration(const fs::path& folder) {
    const nlohmann::json settings = read_beside(folder, "tokenizer_config.json");
    const std::string where = fmt::format("'{}'", (folder / "tokenizer_config.json").string());
    const std::string type = string_or(settings, "tokenizer_class", "", where);
    // Each of these classes moves the model's ids in its own way.
    for (const char* moved : {"XLMRoberta", "Camembert", "MBart", "Barthez", "NllbTokenizer"}) {
      TESSERA_CHECK(type.find(moved) == std::string::npos, ErrorCode::data,
                    "{}: {} changes the ids of the .model; save the folder with "
                    "AutoTokenizer.from_pretrained(..).save_pretrained(..), which writes a "
                    "tokenizer.json",
                    where, shown(type));
    }
    const bool begins = bool_or(settings, "add_bos_token", type.find("Llama") == 0, where);
    const bool ends = bool_or(settings, "add_eos_token", type.find("T5") == 0, where);
    std::vector<std::int32_t> before;
    std::vector<std::int32_t> after;
    if (begins && processor_.bos_id() >= 0) before.push_back(processor_.bos_id());
    if (ends && processor_.eos_id() >= 0) after.push_back(processor_.eos_id());
    template_ = PostProcessor(before, after);
  }

  std::string name_;
  std::uint64_t fingerprint_ = 0;
  sentencepiece::SentencePieceProcessor processor_;
  PostProcessor template_;
};

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_sentencepiece(const fs::path& path) {
  const std::string contents = read_tokenizer_file(path);
  if (is_tiktoken(contents)) return tokenizer_from_tiktoken(path);
  return std::make_shared<SentencePiece>(path, contents);
}

}  // namespace tessera::tokenizers

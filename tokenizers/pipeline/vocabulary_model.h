// Turns a word into ids: the `model` of a tokenizer file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tessera::tokenizers {

// Any number of threads may use it.
class VocabularyModel {
 public:
  virtual ~VocabularyModel() = default;

  // Memory of one thread that calls encode() repeatedly.
  struct Scratch {
    virtual ~Scratch() = default;
  };
  [[nodiscard]] virtual std::unique_ptr<Scratch> scratch() const { return {}; }

  // Appends the ids of a word, or of a whole text if the file does not cut texts.
  virtual void encode(std::string_view word, Scratch* scratch,
                      std::vector<std::int32_t>& ids) const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  // The tokens by id, as in the file; empty for an unused id.
  [[nodiscard]] virtual const std::vector<std::string>& tokens() const = 0;
  // The number of tokens in the file; less than tokens() if ids have gaps.
  [[nodiscard]] virtual std::int64_t listed() const = 0;
};

struct ModelOptions {
  // The words are bytes and the file's tokens are written in GPT-2's alphabet for bytes.
  bool byte_alphabet = false;
  // Byte-pair encoding as in tiktoken: with byte_alphabet, any two neighbours whose bytes together
  // are a token are merged, and the id of that token is the rank. Not among the tokens are these
  // ids, of special tokens.
  std::optional<std::set<std::int32_t>> merges_by_id_except = {};
};

// Chosen by the `type` of the JSON, or by its members in old files without a type. Throws
// Error(data) beginning with `source`.
std::unique_ptr<VocabularyModel> make_vocabulary_model(const nlohmann::json& json,
                                                       const ModelOptions& options,
                                                       const std::string& source);

// One file each in models/.
std::unique_ptr<VocabularyModel> make_word_piece(const nlohmann::json& json,
                                                 const std::string& source);
std::unique_ptr<VocabularyModel> make_word_level(const nlohmann::json& json,
                                                 const std::string& source);
std::unique_ptr<VocabularyModel> make_byte_pair(const nlohmann::json& json,
                                                const ModelOptions& options,
                                                const std::string& source);
std::unique_ptr<VocabularyModel> make_unigram(const nlohmann::json& json,
                                              const std::string& source);

// Ids are indices into a model's embedding: a file with a larger id is refused.
inline constexpr std::int64_t largest_vocabulary = std::int64_t{1} << 24;

// token -> id, as in `vocab` of WordPiece, BPE and WordLevel.
std::vector<std::pair<std::string, std::int32_t>> vocabulary_of(const nlohmann::json& json,
                                                                const std::string& source);
std::vector<std::string> tokens_by_id(
    const std::vector<std::pair<std::string, std::int32_t>>& vocabulary);

}  // namespace tessera::tokenizers

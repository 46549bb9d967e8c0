// What turns a word into ids: the `model` of a tokenizer file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace tessera::tokenizers {

// Used by any number of threads.
class VocabularyModel {
 public:
  virtual ~VocabularyModel() = default;

  // Memory of one thread that calls encode() again and again.
  struct Scratch {
    virtual ~Scratch() = default;
  };
  [[nodiscard]] virtual std::unique_ptr<Scratch> scratch() const { return {}; }

  // Appends the ids of a word, or of a whole text where the file cuts none.
  virtual void encode(std::string_view word, Scratch* scratch,
                      std::vector<std::int32_t>& ids) const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  // The tokens by their ids, as the file writes them; empty where an id is nobody's.
  [[nodiscard]] virtual const std::vector<std::string>& tokens() const = 0;
  // How many tokens the file lists; where ids have gaps, fewer than tokens().
  [[nodiscard]] virtual std::int64_t listed() const = 0;
};

struct ModelOptions {
  // The words are bytes and the file's tokens are written in GPT-2's alphabet for bytes.
  bool byte_alphabet = false;
};

// By the `type` of the JSON, or its members where old files have none. Throws Error(data) beginning
// with `source`.
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

// Ids are indices of a model's embedding: a file with one beyond this is refused.
inline constexpr std::int64_t largest_vocabulary = std::int64_t{1} << 24;

// token -> id, as `vocab` of WordPiece, BPE and WordLevel has it.
std::vector<std::pair<std::string, std::int32_t>> vocabulary_of(const nlohmann::json& json,
                                                                const std::string& source);
std::vector<std::string> tokens_by_id(
    const std::vector<std::pair<std::string, std::int32_t>>& vocabulary);

}  // namespace tessera::tokenizers

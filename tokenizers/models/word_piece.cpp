// WordPiece: takes the longest token that the word begins with, then the longest that continues it,
// and so on. A word that cannot be covered is one unknown token.
#include <utility>

#include "base/error.h"
#include "tokenizers/pipeline/vocabulary_model.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/trie.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

class WordPiece final : public VocabularyModel {
 public:
  WordPiece(const nlohmann::json& object, const std::string& source) {
    auto vocabulary = vocabulary_of(object, source);
    for (const auto& entry : vocabulary) check_walk(entry.first, source);
    listed_ = static_cast<std::int64_t>(vocabulary.size());
    tokens_ = tokens_by_id(vocabulary);
    trie_ = Trie(std::move(vocabulary));
    continuation_ = trie_.walk(string_or(object, "continuing_subword_prefix", "##", source));
    longest_word_ = static_cast<std::size_t>(
        integer_or(object, "max_input_chars_per_word", 100, 0, 1 << 20, source));
    const std::string unknown = string_or(object, "unk_token", "[UNK]", source);
    unknown_ = trie_.find(unknown);
    TESSERA_CHECK(unknown_ != Trie::none, ErrorCode::data,
                  "{}: the unknown token '{}' is not in the vocabulary", source, shown(unknown));
  }

  void encode(std::string_view word, Scratch*, std::vector<std::int32_t>& ids) const override {
    const std::size_t before = ids.size();
    if (word.size() > longest_word_ && characters(word) > longest_word_) {
      ids.push_back(unknown_);
      return;
    }
    for (std::size_t begin = 0; begin < word.size();) {
      std::uint32_t node = begin == 0 ? Trie::root : continuation_;
      std::int32_t longest = Trie::none;
      std::size_t longest_end = begin;
      for (std::size_t end = begin; node != Trie::no_node && end < word.size();) {
        node = trie_.child(node, static_cast<unsigned char>(word[end]));
        ++end;
        if (node != Trie::no_node && trie_.value(node) != Trie::none) {
          longest = trie_.value(node);
          longest_end = end;
        }
      }
      if (longest == Trie::none) {
        ids.resize(before);
        ids.push_back(unknown_);
        return;
      }
      ids.push_back(longest);
      begin = longest_end;
    }
  }

  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
    const std::int32_t id = trie_.find(token);
    return id == Trie::none ? std::nullopt : std::optional(id);
  }
  [[nodiscard]] const std::vector<std::string>& tokens() const override { return tokens_; }
  [[nodiscard]] std::int64_t listed() const override { return listed_; }

 private:
  static std::size_t characters(std::string_view word) {
    std::size_t count = 0;
    for (const char byte : word) count += starts_character(byte) ? 1 : 0;
    return count;
  }

  Trie trie_;
  std::vector<std::string> tokens_;
  std::int64_t listed_ = 0;
  std::uint32_t continuation_ = Trie::no_node;
  std::size_t longest_word_ = 100;
  std::int32_t unknown_ = 0;
};

// Looks up whole words only.
class WordLevel final : public VocabularyModel {
 public:
  WordLevel(const nlohmann::json& object, const std::string& source) {
    auto vocabulary = vocabulary_of(object, source);
    listed_ = static_cast<std::int64_t>(vocabulary.size());
    tokens_ = tokens_by_id(vocabulary);
    trie_ = Trie(std::move(vocabulary));
    unknown_name_ = string_or(object, "unk_token", "<unk>", source);
    unknown_ = trie_.find(unknown_name_);
  }
  void encode(std::string_view word, Scratch*, std::vector<std::int32_t>& ids) const override {
    std::int32_t id = trie_.find(word);
    if (id == Trie::none) id = unknown_;
    TESSERA_CHECK(id != Trie::none, ErrorCode::data,
                  "the word '{}' is not in the vocabulary, and neither is the unknown token '{}'",
                  shown(word), shown(unknown_name_));
    ids.push_back(id);
  }
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
    const std::int32_t id = trie_.find(token);
    return id == Trie::none ? std::nullopt : std::optional(id);
  }
  [[nodiscard]] const std::vector<std::string>& tokens() const override { return tokens_; }
  [[nodiscard]] std::int64_t listed() const override { return listed_; }

 private:
  Trie trie_;
  std::vector<std::string> tokens_;
  std::int64_t listed_ = 0;
  std::string unknown_name_;
  std::int32_t unknown_ = Trie::none;
};

}  // namespace

std::unique_ptr<VocabularyModel> make_word_piece(const nlohmann::json& object,
                                                 const std::string& source) {
  return std::make_unique<WordPiece>(object, source);
}

std::unique_ptr<VocabularyModel> make_word_level(const nlohmann::json& object,
                                                 const std::string& source) {
  return std::make_unique<WordLevel>(object, source);
}

}  // namespace tessera::tokenizers

// Tokens that are cut out of a text before the rest of it is normalised and cut: special tokens,
// and tokens that users added to a vocabulary.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/pipeline/normalizer.h"
#include "tokenizers/pipeline/vocabulary_model.h"
#include "tokenizers/text/trie.h"

namespace tessera::tokenizers {

struct AddedToken {
  std::string content;
  std::string decoded;  // the content, normalised if it is searched for in normalised text
  std::int32_t id = 0;
  bool single_word = false;  // only where no letter is next to it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;
  bool normalized = false;  // searched for in the normalised text
  bool special = false;
  bool operator==(const AddedToken&) const = default;
};

// A part of a text: an added token, or the text between two.
struct TextPart {
  std::string_view text;
  std::size_t begin = 0;  // in the original text
  std::optional<std::int32_t> id = {};
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `added_tokens` of a tokenizer file. Tokens that the model has keep its ids; the others get the
  // next free ids, as in the `tokenizers` package.
  AddedTokens(const nlohmann::json& listed, const VocabularyModel& model,
              const Normalizer* normalizer, const std::string& source);

  // The first step, on the original text, and the second, on normalised text. The longest match
  // wins.
  void cut_text(std::string_view text, std::vector<TextPart>& parts) const {
    cut(text, exact_, parts);
  }
  void cut_normalized(std::string_view text, std::vector<TextPart>& parts) const {
    cut(text, normalized_, parts);
  }
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view content) const;
  // By id.
  [[nodiscard]] const std::map<std::int32_t, AddedToken>& by_id() const { return by_id_; }
  [[nodiscard]] bool is_special(std::string_view content) const {
    return special_.find(content) != special_.end();
  }

 private:
  struct Searched {
    Trie trie;  // to indices of `tokens`
    std::vector<AddedToken> tokens;
  };
  static Searched searched(std::vector<AddedToken> tokens);
  static void cut(std::string_view text, const Searched& searched, std::vector<TextPart>& parts);

  Searched exact_;
  Searched normalized_;
  std::map<std::string, std::int32_t, std::less<>> ids_;
  std::map<std::int32_t, AddedToken> by_id_;
  std::set<std::string, std::less<>> special_;
};

}  // namespace tessera::tokenizers

// The types of models, and vocabularies in JSON.
#include "tokenizers/pipeline/vocabulary_model.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {

using nlohmann::json;

std::unique_ptr<VocabularyModel> make_vocabulary_model(const json& model,
                                                       const ModelOptions& options,
                                                       const std::string& source) {
  TESSERA_CHECK(model.is_object(), ErrorCode::data, "{}: not a JSON object", source);
  // Files of 2020 have no type; their members tell it.
  const std::string type = has(model, "type")                        ? type_of(model, source)
                           : has(model, "merges")                    ? "BPE"
                           : has(model, "continuing_subword_prefix") ? "WordPiece"
                           : has(model, "unk_id")                    ? "Unigram"
                                                                     : "WordLevel";
  if (type == "WordPiece") return make_word_piece(model, source);
  if (type == "BPE") return make_byte_pair(model, options, source);
  if (type == "Unigram") return make_unigram(model, source);
  if (type == "WordLevel") return make_word_level(model, source);
  fail(ErrorCode::data,
       "{}: model type '{}' is not supported; there are WordPiece, BPE, Unigram and WordLevel",
       source, shown(type));
}

std::vector<std::pair<std::string, std::int32_t>> vocabulary_of(const json& model,
                                                                const std::string& source) {
  const json& listed = member(model, "vocab", source);
  TESSERA_CHECK(listed.is_object(), ErrorCode::data, "{}: 'vocab' is not a JSON object", source);
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;
  vocabulary.reserve(listed.size());
  std::int32_t last = 0;
  for (const auto& [token, id] : listed.items()) {
    const bool fits = id.is_number_unsigned() &&
                      id.get<std::uint64_t>() < static_cast<std::uint64_t>(largest_vocabulary);
    TESSERA_CHECK(fits, ErrorCode::data, "{}: the id of token '{}' is not an integer from 0 to {}",
                  source, shown(token), largest_vocabulary - 1);
    vocabulary.emplace_back(token, id.get<std::int32_t>());
    last = std::max(last, vocabulary.back().second);
  }
  // Memory is allocated for every id, used or not.
  TESSERA_CHECK(std::cmp_less_equal(last, 4 * vocabulary.size() + 100'000), ErrorCode::data,
                "{}: {} tokens with ids up to {}; the file is damaged", source, vocabulary.size(),
                last);
  return vocabulary;
}

std::vector<std::string> tokens_by_id(
    const std::vector<std::pair<std::string, std::int32_t>>& vocabulary) {
  std::size_t size = 0;
  for (const auto& entry : vocabulary) {
    size = std::max(size, static_cast<std::size_t>(entry.second) + 1);
  }
  std::vector<std::string> tokens(size);
  for (const auto& entry : vocabulary) tokens[static_cast<std::size_t>(entry.second)] = entry.first;
  return tokens;
}

}  // namespace tessera::tokenizers

// The files of a tokenizer's folder, read whole and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/data/tokenizer.h"
#include "tokenizers/pipeline/pipeline.h"

namespace tessera::tokenizers {

// Error(data) with the path if the file cannot be read or is larger than any tokenizer.
std::string read_tokenizer_file(const std::filesystem::path& path);
// A JSON object, with every key once.
nlohmann::json read_tokenizer_json(const std::filesystem::path& path);
// The contents of a file beside a tokenizer, or null if it does not exist.
nlohmann::json read_beside(const std::filesystem::path& folder, const char* name);

// The tokens that end a text and pad sequences, from tokenizer_config.json and
// special_tokens_map.json beside the tokenizer.
struct SpecialNames {
  explicit SpecialNames(const std::filesystem::path& folder);
  std::optional<std::string> padding;
  std::optional<std::string> end_of_text;
  nlohmann::json configuration;  // tokenizer_config.json; null: there is none
};
void name_special_tokens(const SpecialNames& names, PipelineParts& parts);

// The tokenizer of a tokenizer.json with these contents. `path` is the file that they come from,
// for the name, messages and the files beside it.
std::shared_ptr<const Tokenizer> tokenizer_of_json(const nlohmann::json& file,
                                                   const std::filesystem::path& path,
                                                   ModelOptions options = {});
// A vocabulary whose ids are ranks, as tiktoken and Mistral's tekken have it.
struct RankedVocabulary {
  std::map<std::string, std::int32_t> tokens;   // by their bytes; the lowest id is merged first
  std::map<std::int32_t, std::string> special;  // by id
  std::string pattern;                          // of words, in the syntax of tiktoken
  std::string begin_of_sequence = {};           // a special token before each; empty: none
};
// `pattern_place` says where the pattern is, for messages.
std::shared_ptr<const Tokenizer> tokenizer_of_ranks(const RankedVocabulary& vocabulary,
                                                    const std::filesystem::path& path,
                                                    const std::string& pattern_place);
// The tokens of `added_tokens_decoder` in a tokenizer_config.json, by id: objects with a text
// `content`. `source` names the file for messages. None if it does not have the member.
std::map<std::int32_t, nlohmann::json> listed_tokens(const nlohmann::json& settings,
                                                     const std::string& source);
// Qwen's pattern of words, in the syntax of tokenizer.json.
inline constexpr const char* qwen_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
// The bytes of base64 text, or none if it is not base64.
std::optional<std::string> from_base64(std::string_view text);

// One function for each kind of file.
std::shared_ptr<const Tokenizer> tokenizer_from_json(const std::filesystem::path& path);
std::shared_ptr<const Tokenizer> tokenizer_from_vocabulary(const std::filesystem::path& path);
std::shared_ptr<const Tokenizer> tokenizer_from_sentencepiece(const std::filesystem::path& path);
// Lines of a token in base64 and its rank.
std::shared_ptr<const Tokenizer> tokenizer_from_tiktoken(const std::filesystem::path& path);
bool is_tiktoken(std::string_view contents);
std::shared_ptr<const Tokenizer> tokenizer_from_tekken(const std::filesystem::path& path);
// vocab.json with merges.txt beside it: the files of GPT-2 and RoBERTa.
std::shared_ptr<const Tokenizer> tokenizer_from_merges(const std::filesystem::path& path);

// The same for tokenizers that give the same ids for every text.
std::uint64_t fingerprint_of(std::string_view contents);

}  // namespace tessera::tokenizers

// The files of a tokenizer's folder, read whole and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

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

std::shared_ptr<const Tokenizer> tokenizer_from_json(const std::filesystem::path& path);
std::shared_ptr<const Tokenizer> tokenizer_from_vocabulary(const std::filesystem::path& path);
std::shared_ptr<const Tokenizer> tokenizer_from_sentencepiece(const std::filesystem::path& path);

// The same for tokenizers that give the same ids for every text.
std::uint64_t fingerprint_of(std::string_view contents);

}  // namespace tessera::tokenizers

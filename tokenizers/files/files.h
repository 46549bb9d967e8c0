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

// Error(data) with the path when it cannot be read or is larger than any tokenizer.
std::string read_tokenizer_file(const std::filesystem::path& path);
// A JSON object, with every key once.
nlohmann::json read_tokenizer_json(const std::filesystem::path& path);
// What stands in a file beside a tokenizer, or null where there is none.
nlohmann::json read_beside(const std::filesystem::path& folder, const char* name);

// Which tokens end a text and fill sequences up, from tokenizer_config.json and
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

// What two tokenizers with the same ids for every text share.
std::uint64_t fingerprint_of(std::string_view contents);

}  // namespace tessera::tokenizers

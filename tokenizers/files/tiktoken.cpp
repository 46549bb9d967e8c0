// Reads the vocabularies of tiktoken: on each line a token in base64, a blank and its rank, which
// is its id. The file has neither the pattern nor the special tokens: these are in
// tokenizer_config.json beside it, or the name is that of a vocabulary that everyone knows.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view base64_letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";

// With the meaning that tiktoken gives them, in the syntax of tokenizer.json.
constexpr const char* gpt2_pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* cl100k_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* o200k_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct KnownVocabulary {
  std::string_view stem;  // of the file's name
  const char* pattern;
  std::map<std::int32_t, std::string> (*special)();
};

std::map<std::int32_t, std::string> special_of_qwen() {
  std::map<std::int32_t, std::string> special{
      {151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}};
  for (std::int32_t i = 0; i < 205; ++i) special[151646 + i] = fmt::format("<|extra_{}|>", i);
  return special;
}

using Special = std::map<std::int32_t, std::string>;
constexpr std::array<KnownVocabulary, 5> known_vocabularies{{
    {"r50k_base", gpt2_pattern,
     [] {
       return Special{{50256, "<|endoftext|>"}};
     }},
    {"p50k_base", gpt2_pattern,
     [] {
       return Special{{50256, "<|endoftext|>"}};
     }},
    {"cl100k_base", cl100k_pattern,
     [] {
       return Special{{100257, "<|endoftext|>"},
                      {100258, "<|fim_prefix|>"},
                      {100259, "<|fim_middle|>"},
                      {100260, "<|fim_suffix|>"},
                      {100276, "<|endofprompt|>"}};
     }},
    {"o200k_base", o200k_pattern,
     [] {
       return Special{{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}};
     }},
    {"qwen", qwen_pattern, special_of_qwen},
}};

// As Python's decoder reads it. Padding alone is an empty token, which no text contains: the files
// of openai-whisper have one, "= 50256".
std::optional<std::string> token_in(std::string_view base64) {
  const bool is_padding = !base64.empty() && base64.find_first_not_of('=') == base64.npos;
  if (is_padding) return std::string();
  auto token = from_base64(base64);
  return token && !token->empty() ? token : std::nullopt;
}

std::map<std::string, std::int32_t> read_ranks(const std::string& contents,
                                               const std::string& source) {
  std::map<std::string, std::int32_t> ranks;
  std::size_t number = 0;
  for (std::size_t at = 0; at < contents.size();) {
    const std::size_t end = std::min(contents.find('\n', at), contents.size());
    std::string_view line = std::string_view(contents).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t blank = std::min(line.find(' '), line.size());
    const auto token = token_in(line.substr(0, blank));
    const std::string_view digits = line.substr(std::min(blank + 1, line.size()));
    std::int32_t rank = -1;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    TESSERA_CHECK(
        token && parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size() &&
            rank >= 0 && rank < largest_vocabulary,
        ErrorCode::data, "{}: line {} ('{}') is not a token in base64, a blank and a rank", source,
        number, shown(line));
    TESSERA_CHECK(ranks.emplace(*token, rank).second, ErrorCode::data,
                  "{}: line {}: the token '{}' occurs twice", source, number, shown(*token));
  }
  return ranks;
}

}  // namespace

bool is_tiktoken(std::string_view contents) {
  constexpr std::size_t longest_line = 1024;
  const std::string_view line = contents.substr(0, std::min(contents.find('\n'), longest_line));
  const std::size_t blank = line.find(' ');
  return blank != std::string_view::npos && blank > 0 && blank % 4 == 0 &&
         blank + 1 < line.size() && line.find_first_not_of(base64_letters) == blank &&
         line.find_first_not_of("0123456789\r", blank + 1) == std::string_view::npos;
}

std::shared_ptr<const Tokenizer> tokenizer_from_tiktoken(const fs::path& path) {
  RankedVocabulary vocabulary;
  vocabulary.tokens = read_ranks(read_tokenizer_file(path), fmt::format("'{}'", path.string()));
  const json settings = read_beside(path.parent_path(), "tokenizer_config.json");
  const std::string where =
      fmt::format("'{}'", (path.parent_path() / "tokenizer_config.json").string());
  std::string pattern_place = where;
  vocabulary.pattern = string_or(settings, "pattern", "", where);
  if (vocabulary.pattern.empty()) vocabulary.pattern = string_or(settings, "pat_str", "", where);
  for (const auto& [id, token] : listed_tokens(settings, where)) {
    vocabulary.special[id] = token["content"];
  }
  const std::string stem = path.stem().string();
  const auto known = std::find_if(known_vocabularies.begin(), known_vocabularies.end(),
                                  [&](const KnownVocabulary& each) { return each.stem == stem; });
  if (known != known_vocabularies.end()) {
    if (vocabulary.pattern.empty()) {
      vocabulary.pattern = known->pattern;
      pattern_place = fmt::format("'{}'", path.string());
    }
    if (vocabulary.special.empty()) vocabulary.special = known->special();
  }
  TESSERA_CHECK(
      !vocabulary.pattern.empty() && !vocabulary.special.empty(), ErrorCode::data,
      "'{}' is a file of tiktoken's, which has neither the pattern of words nor the special "
      "tokens; "
      "put them into {} as \"pattern\" and \"added_tokens_decoder\", or save the tokenizer with "
      "AutoTokenizer.from_pretrained(..).save_pretrained(..), which writes a tokenizer.json",
      path.string(), where);
  return tokenizer_of_ranks(vocabulary, path, pattern_place);
}

}  // namespace tessera::tokenizers

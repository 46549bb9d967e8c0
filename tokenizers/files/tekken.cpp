// Reads Mistral's tekken.json: the special tokens have the first ids, the ranked tokens those
// behind.
#include <array>

#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The files of 2024 do not list their special tokens, which are these.
constexpr std::array<const char*, 20> first_special_tokens{"<unk>",
                                                           "<s>",
                                                           "</s>",
                                                           "[INST]",
                                                           "[/INST]",
                                                           "[AVAILABLE_TOOLS]",
                                                           "[/AVAILABLE_TOOLS]",
                                                           "[TOOL_RESULTS]",
                                                           "[/TOOL_RESULTS]",
                                                           "[TOOL_CALLS]",
                                                           "[IMG]",
                                                           "<pad>",
                                                           "[IMG_BREAK]",
                                                           "[IMG_END]",
                                                           "[PREFIX]",
                                                           "[MIDDLE]",
                                                           "[SUFFIX]",
                                                           "[SYSTEM_PROMPT]",
                                                           "[/SYSTEM_PROMPT]",
                                                           "[TOOL_CONTENT]"};

std::map<std::int32_t, std::string> special_tokens(const json& file, std::int64_t number,
                                                   const std::string& source) {
  std::map<std::int32_t, std::string> special;
  const auto add = [&](std::int64_t id, std::string text) {
    TESSERA_CHECK(id < number && special.emplace(static_cast<std::int32_t>(id), text).second,
                  ErrorCode::data, "{}: the special token '{}' has the id {}, of {}", source,
                  shown(text), id, number);
  };
  if (has(file, "special_tokens")) {
    const json& listed = file["special_tokens"];
    TESSERA_CHECK(listed.is_array(), ErrorCode::data, "{}: special_tokens is not a list", source);
    for (const json& token : listed) {
      add(integer_of(token, "rank", 0, largest_vocabulary - 1, source),
          string_of(token, "token_str", source));
    }
  } else {
    for (std::size_t i = 0; i < first_special_tokens.size(); ++i) {
      add(static_cast<std::int64_t>(i), first_special_tokens[i]);
    }
  }
  for (std::int32_t id = 0; id < number; ++id) {
    special.try_emplace(id, fmt::format("<SPECIAL_{}>", id));
  }
  return special;
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_tekken(const fs::path& path) {
  const std::string source = fmt::format("'{}'", path.string());
  const json file = read_tokenizer_json(path);
  const json& config = member(file, "config", source);
  TESSERA_CHECK(config.is_object(), ErrorCode::data, "{}: config is not an object", source);
  const std::int64_t all =
      integer_of(config, "default_vocab_size", 1, largest_vocabulary - 1, source);
  const std::int64_t special = integer_of(config, "default_num_special_tokens", 0, all - 1, source);
  RankedVocabulary vocabulary;
  vocabulary.pattern = string_of(config, "pattern", source);
  vocabulary.special = special_tokens(file, special, source);
  const json& listed = member(file, "vocab", source);
  TESSERA_CHECK(listed.is_array(), ErrorCode::data, "{}: vocab is not a list", source);
  for (const json& token : listed) {
    const std::int64_t rank = integer_of(token, "rank", 0, largest_vocabulary - 1, source);
    if (rank >= all - special) continue;  // a model uses the first tokens of the list
    const std::string text = string_of(token, "token_bytes", source);
    const auto bytes = from_base64(text);
    TESSERA_CHECK(
        bytes && !bytes->empty() &&
            vocabulary.tokens.emplace(*bytes, static_cast<std::int32_t>(rank + special)).second,
        ErrorCode::data,
        "{}: the token_bytes of rank {}, '{}', are not base64 or occur "
        "twice",
        source, rank, shown(text));
  }
  for (const auto& [id, text] : vocabulary.special) {
    if (text == "<s>") vocabulary.begin_of_sequence = text;
  }
  return tokenizer_of_ranks(vocabulary, path, source);
}

}  // namespace tessera::tokenizers

// Reading with a limit, and the small files beside a tokenizer.
#include "tokenizers/files/files.h"

#include <xxhash.h>

#include <charconv>

#include "base/error.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/json.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A special token is given by its text, or by an object with its text and flags.
std::optional<std::string> special_name(const json& object, const char* key) {
  if (!has(object, key)) return {};
  const json& value = object[key];
  if (value.is_string()) return value.get<std::string>();
  if (has(value, "content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return {};
}

std::optional<std::int32_t> id_in(const PipelineParts& parts, const std::string& token) {
  const auto added = parts.added.id_of(token);
  return added ? added : parts.model->id_of(token);
}

}  // namespace

std::string read_tokenizer_file(const fs::path& path) {
  constexpr std::uint64_t largest = std::uint64_t{256} << 20;  // today's are below 40 MiB
  try {
    return checkpoint::read_file(path, largest);
  } catch (const Error& error) {
    throw Error(ErrorCode::data, error.what());  // the same text as another kind of error
  }
}

json read_tokenizer_json(const fs::path& path) {
  const std::string text = read_tokenizer_file(path);
  json object;
  try {
    object = checkpoint::parse_json(text, path.string());
  } catch (const Error& error) {
    throw Error(ErrorCode::data, error.what());
  }
  TESSERA_CHECK(object.is_object(), ErrorCode::data, "'{}': not a JSON object", path.string());
  return object;
}

json read_beside(const fs::path& folder, const char* name) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / name, ignored)) return nullptr;
  return read_tokenizer_json(folder / name);
}

std::map<std::int32_t, json> listed_tokens(const json& settings, const std::string& source) {
  std::map<std::int32_t, json> tokens;
  if (!has(settings, "added_tokens_decoder")) return tokens;
  const json& listed = settings["added_tokens_decoder"];
  TESSERA_CHECK(listed.is_object(), ErrorCode::data, "{}: added_tokens_decoder is not an object",
                source);
  for (const auto& [key, token] : listed.items()) {
    std::int32_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    TESSERA_CHECK(parsed.ec == std::errc() && parsed.ptr == key.data() + key.size() && id >= 0 &&
                      id < largest_vocabulary,
                  ErrorCode::data, "{}: added_tokens_decoder has the id '{}'", source, shown(key));
    (void)string_of(token, "content", source);
    tokens[id] = token;
  }
  return tokens;
}

SpecialNames::SpecialNames(const fs::path& folder)
    : configuration(read_beside(folder, "tokenizer_config.json")) {
  const json map = read_beside(folder, "special_tokens_map.json");
  for (const json* file : {&map, &std::as_const(configuration)}) {
    if (auto name = special_name(*file, "pad_token")) padding = name;
    if (auto name = special_name(*file, "eos_token")) end_of_text = name;
  }
}

void name_special_tokens(const SpecialNames& names, PipelineParts& parts) {
  if (names.padding) parts.padding_id = id_in(parts, *names.padding);
  if (names.end_of_text) parts.end_of_text = id_in(parts, *names.end_of_text);
  // If no file names them: the names that most vocabularies have.
  for (const char* name : {"[PAD]", "<pad>"}) {
    if (!parts.padding_id) parts.padding_id = id_in(parts, name);
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}) {
    if (!parts.end_of_text) parts.end_of_text = id_in(parts, name);
  }
}

std::uint64_t fingerprint_of(std::string_view contents) {
  return XXH3_64bits(contents.data(), contents.size());
}

}  // namespace tessera::tokenizers

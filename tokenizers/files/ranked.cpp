// Tokenizers of ranked vocabularies, as the pieces of a tokenizer.json.
#include <sodium.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/byte_alphabet.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// True for "{2}+" or "{1,3}+" from `at` on.
bool is_possessive_count(std::string_view pattern, std::size_t at) {
  std::size_t end = at + 1;
  while (end < pattern.size() && (is_digit(pattern[end]) || pattern[end] == ',')) ++end;
  return end > at + 1 && pattern.substr(end).starts_with("}+");
}

// The part of a pattern that tiktoken's engine reads in another way than the one here; empty: none.
std::string_view foreign_syntax(std::string_view pattern) {
  int depth = 0;  // of classes
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c == '\\') {
      // \p{Lu}, \x{41}: their braces are not numbers of times.
      const bool named = at + 2 < pattern.size() && pattern[at + 2] == '{' &&
                         std::string_view("pPx").find(pattern[at + 1]) != std::string_view::npos;
      at = named ? std::min(pattern.find('}', at), pattern.size()) : at + 1;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']') {
      depth = std::max(depth - 1, 0);  // outside of a class it is a character
    } else if (depth == 0 && (c == '$' || c == '^')) {
      return c == '$' ? "$" : "^";
    } else if (depth == 0 && c == '{' && is_possessive_count(pattern, at)) {
      return "{n,m}+";
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size(), '\0');
  std::size_t length = 0;
  const char* end = nullptr;
  const int result =
      sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &length, &end, sodium_base64_VARIANT_ORIGINAL);
  if (result != 0 || end != text.data() + text.size()) return std::nullopt;
  bytes.resize(length);
  return bytes;
}

std::shared_ptr<const Tokenizer> tokenizer_of_ranks(const RankedVocabulary& vocabulary,
                                                    const fs::path& path,
                                                    const std::string& pattern_place) {
  const std::string source = fmt::format("'{}'", path.string());
  const std::string_view foreign = foreign_syntax(vocabulary.pattern);
  TESSERA_CHECK(foreign.empty(), ErrorCode::data,
                "{}: the pattern has '{}', which tiktoken reads in another way than the package "
                "tokenizers; write it as in the tokenizer.json of such a model",
                pattern_place, foreign);
  for (int byte = 0; byte < 256; ++byte) {
    TESSERA_CHECK(vocabulary.tokens.contains(std::string(1, static_cast<char>(byte))),
                  ErrorCode::data, "{}: no token is the byte 0x{:02x}; the file is damaged", source,
                  byte);
  }
  json tokens = json::object();
  std::map<std::int32_t, std::string_view> by_id;
  const auto add = [&](const std::string& text, std::int32_t id, std::string_view shown_text) {
    const auto [other, added] = by_id.emplace(id, shown_text);
    TESSERA_CHECK(added && !tokens.contains(text), ErrorCode::data,
                  "{}: tokens '{}' and '{}' have one id or text, {}", source, shown(other->second),
                  shown(shown_text), id);
    tokens[text] = static_cast<std::uint64_t>(id);
  };
  for (const auto& [bytes, id] : vocabulary.tokens) {
    add(byte_alphabet().write(bytes), id, bytes);
  }
  json special = json::array();
  ModelOptions options;
  options.merges_by_id_except.emplace();
  for (const auto& [id, text] : vocabulary.special) {
    add(text, id, text);
    special.push_back({{"content", text}, {"special", true}, {"normalized", false}});
    options.merges_by_id_except->insert(id);
  }
  const json split{
      {"type", "Split"}, {"pattern", {{"Regex", vocabulary.pattern}}}, {"behavior", "Isolated"}};
  const json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  json file{{"model",
             {{"type", "BPE"},
              {"vocab", std::move(tokens)},
              {"merges", json::array()},
              {"ignore_merges", true}}},
            {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
            {"added_tokens", std::move(special)},
            {"decoder", {{"type", "ByteLevel"}}}};
  if (!vocabulary.begin_of_sequence.empty()) {
    const std::string& first = vocabulary.begin_of_sequence;
    const json id = file["model"]["vocab"][first];
    file["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", first}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", json::array()},
        {"special_tokens", {{first, {{"id", first}, {"ids", {id}}, {"tokens", {first}}}}}}};
  }
  return tokenizer_of_json(file, path, options);
}

}  // namespace tessera::tokenizers

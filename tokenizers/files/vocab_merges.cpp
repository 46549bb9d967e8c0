// Reads vocab.json and merges.txt, the files of GPT-2's tokenizer and of those that follow it. What
// they do not have, tokenizer_config.json and the small files beside it have, or the class decides.
#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "tokenizers/files/files.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

enum class Family : std::uint8_t { gpt2, roberta, qwen2 };
struct NamedFamily {
  std::string_view name;  // of the class, or model_type of config.json
  Family family;
};
constexpr std::array<NamedFamily, 11> families{{{"GPT2Tokenizer", Family::gpt2},
                                                {"RobertaTokenizer", Family::roberta},
                                                {"BartTokenizer", Family::roberta},
                                                {"LongformerTokenizer", Family::roberta},
                                                {"LEDTokenizer", Family::roberta},
                                                {"Qwen2Tokenizer", Family::qwen2},
                                                {"gpt2", Family::gpt2},
                                                {"roberta", Family::roberta},
                                                {"bart", Family::roberta},
                                                {"longformer", Family::roberta},
                                                {"qwen2", Family::qwen2}}};
constexpr std::array<const char*, 7> token_keys{"bos_token", "eos_token", "unk_token", "sep_token",
                                                "cls_token", "pad_token", "mask_token"};

Family family_of(const json& settings, const json& config, const std::string& where,
                 const std::string& config_place) {
  std::string name = string_or(settings, "tokenizer_class", "", where);
  std::string place = where;
  if (name.ends_with("Fast")) name.resize(name.size() - std::string_view("Fast").size());
  // Written by transformers where it knew no other class.
  if (name == "PreTrainedTokenizer" || name == "TokenizersBackend") name.clear();
  if (name.empty()) {
    name = string_or(config, "model_type", "gpt2", config_place);
    place = config_place;
  }
  for (const NamedFamily& family : families) {
    if (family.name == name) return family.family;
  }
  fail(ErrorCode::data,
       "{}: a vocab.json of {} is not read, because its class cuts texts in its own way; save the "
       "tokenizer with AutoTokenizer.from_pretrained(..).save_pretrained(..), which writes a "
       "tokenizer.json",
       place, shown(name));
}

json merges_of(const std::string& text) {
  json merges = json::array();
  bool first = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    const bool is_version = first && line.starts_with("#version");
    first = false;
    if (!is_version && !line.empty()) merges.push_back(std::move(line));
  }
  return merges;
}

struct NamedToken {
  std::string text = {};  // empty: there is none
  bool lstrip = false;    // takes the blanks before it
};
using NamedTokens = std::map<std::string, NamedToken>;  // by key

// The special tokens of a folder, by their texts, with the members that AddedTokens reads.
class SpecialTokens {
 public:
  explicit SpecialTokens(json& vocabulary) : vocabulary_(vocabulary) {}

  // A token of the file `where` with its id, which the vocabulary may lack.
  void add(const json& token, std::int64_t id, const std::string& where) {
    const std::string text = string_of(token, "content", where);
    if (const auto known = vocabulary_.find(text); known != vocabulary_.end()) {
      TESSERA_CHECK(*known == id, ErrorCode::data, "{}: the token '{}' has the ids {} and {}",
                    where, shown(text), known->dump(), id);
    } else {
      vocabulary_[text] = static_cast<std::uint64_t>(id);
    }
    keep(text, token);
  }
  void add(const std::string& text, bool lstrip) {
    keep(text,
         json{{"content", text}, {"special", true}, {"normalized", false}, {"lstrip", lstrip}});
  }
  [[nodiscard]] const json& tokens() const { return tokens_; }

 private:
  void keep(const std::string& text, const json& token) {
    if (names_.insert(text).second) tokens_.push_back(token);
  }

  json& vocabulary_;
  json tokens_ = json::array();
  std::set<std::string> names_;
};

// The tokens of added_tokens.json: text to id.
void add_tokens_of_file(const json& added, SpecialTokens& special, const std::string& where) {
  if (!added.is_object()) return;
  for (const auto& entry : added.items()) {
    special.add(json{{"content", entry.key()}, {"special", false}, {"normalized", false}},
                integer_of(added, entry.key().c_str(), 0, largest_vocabulary - 1, where), where);
  }
}

// {"bos_token": "<s>"} or {"bos_token": {"content": "<s>", "lstrip": false, ...}}.
void take_token(const json& object, const char* key, const std::string& where, NamedToken& token) {
  if (!has(object, key)) return;
  const json& value = object[key];
  if (value.is_string()) token.text = value.get<std::string>();
  if (!value.is_object()) return;
  token.text = string_of(value, "content", where);
  token.lstrip = bool_or(value, "lstrip", false, where);
}

json around(Family family, const json& settings, const json& vocabulary, const NamedTokens& named,
            const std::string& where) {
  const auto pair = [&](const char* key) {
    const std::string& text = named.at(key).text;
    TESSERA_CHECK(vocabulary.contains(text), ErrorCode::data,
                  "{}: '{}', which is around every sequence, is not in the vocabulary", where,
                  shown(text));
    return json::array({text, vocabulary[text]});
  };
  if (family == Family::roberta) {
    return {{"type", "RobertaProcessing"}, {"cls", pair("cls_token")}, {"sep", pair("sep_token")}};
  }
  if (family == Family::gpt2 && bool_or(settings, "add_bos_token", false, where)) {
    const json first = pair("bos_token");
    const json& text = first[0];
    return {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", text}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"pair", json::array()},
            {"special_tokens",
             {{text.get<std::string>(), {{"id", text}, {"ids", {first[1]}}, {"tokens", {text}}}}}}};
  }
  return nullptr;
}

NamedTokens default_tokens(Family family) {
  if (family == Family::roberta) {
    return {{"bos_token", {"<s>"}},          {"eos_token", {"</s>"}}, {"unk_token", {"<unk>"}},
            {"sep_token", {"</s>"}},         {"cls_token", {"<s>"}},  {"pad_token", {"<pad>"}},
            {"mask_token", {"<mask>", true}}};
  }
  if (family == Family::qwen2) {
    return {{"eos_token", {"<|endoftext|>"}}, {"pad_token", {"<|endoftext|>"}}};
  }
  return {{"bos_token", {"<|endoftext|>"}},
          {"eos_token", {"<|endoftext|>"}},
          {"unk_token", {"<|endoftext|>"}}};
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_from_merges(const fs::path& path) {
  const fs::path folder = path.parent_path();
  const auto place = [&](const char* name) {
    return fmt::format("'{}'", (folder / name).string());
  };
  const std::string where = place("tokenizer_config.json");
  const json settings = read_beside(folder, "tokenizer_config.json");
  const json map = read_beside(folder, "special_tokens_map.json");
  const Family family =
      family_of(settings, read_beside(folder, "config.json"), where, place("config.json"));
  json vocabulary = read_tokenizer_json(path);
  SpecialTokens special(vocabulary);
  for (const auto& [id, token] : listed_tokens(settings, where)) special.add(token, id, where);
  add_tokens_of_file(read_beside(folder, "added_tokens.json"), special, place("added_tokens.json"));
  NamedTokens named = default_tokens(family);
  for (const char* const key : token_keys) {
    take_token(map, key, place("special_tokens_map.json"), named[key]);
    take_token(settings, key, where, named[key]);
    const NamedToken& token = named[key];
    if (vocabulary.contains(token.text)) special.add(token.text, token.lstrip);
  }
  const bool prefix_space = bool_or(settings, "add_prefix_space", false, where);
  const json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", prefix_space},
                        {"use_regex", family != Family::qwen2}};
  json file{{"added_tokens", special.tokens()},
            {"pre_tokenizer", byte_level},
            {"decoder", {{"type", "ByteLevel"}}},
            {"post_processor", around(family, settings, vocabulary, named, where)}};
  if (family == Family::qwen2) {
    const json split{
        {"type", "Split"}, {"pattern", {{"Regex", qwen_pattern}}}, {"behavior", "Isolated"}};
    file["normalizer"] = {{"type", "NFC"}};
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
  }
  file["model"] = {{"type", "BPE"},
                   {"vocab", std::move(vocabulary)},
                   {"merges", merges_of(read_tokenizer_file(folder / "merges.txt"))}};
  return tokenizer_of_json(file, path);
}

}  // namespace tessera::tokenizers

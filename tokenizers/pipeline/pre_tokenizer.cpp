// The types of pre-tokenizers.
#include "tokenizers/pipeline/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

using nlohmann::json;

struct PreTokenizerType {
  const char* name;
  MakeStage (*make)(const json&, const std::string&);
};

constexpr std::array<PreTokenizerType, 10> pre_tokenizer_types = {{
    {"BertPreTokenizer", make_bert_stage},
    {"Split", make_split_stage},
    {"Metaspace", make_metaspace_stage},
    {"Whitespace", make_whitespace_stage},
    {"WhitespaceSplit", make_whitespace_split_stage},
    {"Punctuation", make_punctuation_stage},
    {"Digits", make_digits_stage},
    {"CharDelimiterSplit", make_delimiter_stage},
    {"UnicodeScripts", make_scripts_stage},
    {"FixedLength", make_fixed_length_stage},
}};

const json& listed_stages(const json& object, const std::string& source) {
  const json& listed = member(object, "pretokenizers", source);
  TESSERA_CHECK(listed.is_array(), ErrorCode::data, "{}: 'pretokenizers' is not a list", source);
  return listed;
}

void add_stages(const json& object, bool bytes_as_they_are, const std::string& source,
                std::vector<MakeStage>& stages) {
  const std::string type = type_of(object, source);
  if (type == "Sequence") {
    const json& listed = listed_stages(object, source);
    for (std::size_t i = 0; i < listed.size(); ++i) {
      add_stages(listed[i], bytes_as_they_are && i + 1 == listed.size(),
                 fmt::format("{}[{}]", source, i), stages);
    }
    return;
  }
  if (type == "ByteLevel") {
    stages.push_back(make_byte_level_stage(object, bytes_as_they_are, source));
    return;
  }
  std::string names = "Sequence, ByteLevel";
  for (const PreTokenizerType& known : pre_tokenizer_types) {
    if (type == known.name) {
      stages.push_back(known.make(object, source));
      return;
    }
    names += fmt::format(", {}", known.name);
  }
  fail(ErrorCode::data, "{}: pre-tokenizer type '{}' is not supported; there are {}", source,
       shown(type), names);
}

}  // namespace

std::vector<MakeStage> make_pre_tokenizer(const json& object, bool bytes_as_they_are,
                                          const std::string& source) {
  std::vector<MakeStage> stages;
  if (!object.is_null()) add_stages(object, bytes_as_they_are, source, stages);
  return stages;
}

bool looks_at_beginning(const json& object) {
  if (has(object, "prepend_scheme") && object["prepend_scheme"] == "first") return true;
  if (!has(object, "pretokenizers") || !object["pretokenizers"].is_array()) return false;
  const json& listed = object["pretokenizers"];
  return std::any_of(listed.begin(), listed.end(), looks_at_beginning);
}

bool ends_in_byte_level(const json& object) {
  if (!has(object, "type") || !object["type"].is_string()) return false;
  if (object["type"] == "ByteLevel") return true;
  if (object["type"] != "Sequence" || !has(object, "pretokenizers")) return false;
  const json& listed = object["pretokenizers"];
  return listed.is_array() && !listed.empty() && ends_in_byte_level(listed.back());
}

}  // namespace tessera::tokenizers

// The types of post-processors. Some of them trim offsets into the text, which are not kept here.
#include "tokenizers/pipeline/post_processor.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizers/pipeline/vocabulary_model.h"
#include "tokenizers/text/json_fields.h"

namespace tessera::tokenizers {
namespace {

using nlohmann::json;

std::int32_t template_id(const json& value, const std::string& source) {
  const bool fits = value.is_number_unsigned() &&
                    value.get<std::uint64_t>() < static_cast<std::uint64_t>(largest_vocabulary);
  TESSERA_CHECK(fits, ErrorCode::data, "{}: an id that is not an integer from 0 to {}", source,
                largest_vocabulary - 1);
  return value.get<std::int32_t>();
}

// ["[SEP]", 102]
std::int32_t named_id(const json& object, const char* name, const std::string& source) {
  const json& pair = member(object, name, source);
  TESSERA_CHECK(pair.is_array() && pair.size() == 2, ErrorCode::data,
                "{}: '{}' is not a token and its id", source, name);
  return template_id(pair[1], source);
}

}  // namespace

PostProcessor::PostProcessor(std::vector<std::int32_t> before, std::vector<std::int32_t> after) {
  Template step = std::move(before);
  step.push_back(sequence);
  step.insert(step.end(), after.begin(), after.end());
  if (step.size() > 1) steps_.push_back(std::move(step));
}

void PostProcessor::add(const json& object, const std::string& source) {
  const std::string type = type_of(object, source);
  if (type == "TemplateProcessing") {
    add_template(object, source);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    steps_.push_back({named_id(object, "cls", source), sequence, named_id(object, "sep", source)});
  } else if (type == "Sequence") {
    const json& listed = member(object, "processors", source);
    TESSERA_CHECK(listed.is_array(), ErrorCode::data, "{}: 'processors' is not a list", source);
    for (std::size_t i = 0; i < listed.size(); ++i) {
      add(listed[i], fmt::format("{}[{}]", source, i));
    }
  } else {
    TESSERA_CHECK(type == "ByteLevel", ErrorCode::data,
                  "{}: post-processor type '{}' is not supported; there are TemplateProcessing, "
                  "BertProcessing, RobertaProcessing, ByteLevel and Sequence",
                  source, shown(type));
  }
}

void PostProcessor::add_template(const json& object, const std::string& source) {
  const json& pieces = member(object, "single", source);
  TESSERA_CHECK(pieces.is_array(), ErrorCode::data, "{}: 'single' is not a list", source);
  Template step;
  for (const json& piece : pieces) {
    if (has(piece, "Sequence")) {
      const std::string id = string_of(piece["Sequence"], "id", source + ".single");
      TESSERA_CHECK(id == "A", ErrorCode::data, "{}: a template for one sequence names '{}'",
                    source, shown(id));
      step.push_back(sequence);
      continue;
    }
    const std::string name =
        string_of(member(piece, "SpecialToken", source + ".single"), "id", source + ".single");
    const json& token =
        member(member(object, "special_tokens", source), name.c_str(), source + ".special_tokens");
    const json& ids = member(token, "ids", source + ".special_tokens");
    TESSERA_CHECK(ids.is_array(), ErrorCode::data, "{}.special_tokens: 'ids' is not a list",
                  source);
    for (const json& id : ids) step.push_back(template_id(id, source));
  }
  const auto times = std::count(step.begin(), step.end(), sequence);
  TESSERA_CHECK(times == 1, ErrorCode::data,
                "{}: a template that names the sequence {} times is not supported", source, times);
  steps_.push_back(std::move(step));
}

std::int64_t PostProcessor::added() const {
  std::int64_t count = 0;
  for (const Template& step : steps_) {
    for (const std::int32_t id : step) count += id == sequence ? 0 : 1;
  }
  return count;
}

std::vector<std::int32_t> PostProcessor::apply(std::vector<std::int32_t> ids) const {
  for (const Template& step : steps_) {
    std::vector<std::int32_t> around;
    around.reserve(ids.size() + step.size());
    for (const std::int32_t id : step) {
      if (id == sequence) {
        around.insert(around.end(), ids.begin(), ids.end());
      } else {
        around.push_back(id);
      }
    }
    ids = std::move(around);
  }
  return ids;
}

}  // namespace tessera::tokenizers

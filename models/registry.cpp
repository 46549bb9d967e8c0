// The table of architectures.
#include "models/registry.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/bert.h"
#include "models/config_reader.h"
#include "models/gpt2.h"
#include "models/llama.h"
#include "models/mpnet.h"

namespace tessera::models {
namespace {

template <class Model, class Config>
std::unique_ptr<LanguageModel> make(const nlohmann::json& config, const std::string& source) {
  return std::make_unique<Model>(Config::parse(config, source));
}

constexpr Architecture rows[] = {
    {"gpt2", make<GPT2LMHeadModel, Gpt2Config>},
    {"llama", make<LlamaForCausalLM, LlamaConfig>},
};

}  // namespace

std::span<const Architecture> architectures() {
  return rows;
}

std::unique_ptr<LanguageModel> make_language_model(const nlohmann::json& config,
                                                   const std::string& source) {
  const ConfigReader reader(config, source);
  const std::string model_type = reader.text("model_type");
  std::vector<std::string_view> known;
  for (const Architecture& row : rows) {
    if (row.model_type == model_type) return row.make(config, source);
    known.push_back(row.model_type);
  }
  fail(ErrorCode::configuration, "{}: model_type \"{}\" is not built; there are {}", source,
       model_type, fmt::join(known, ", "));
}

std::unique_ptr<TextEncoder> make_text_encoder(const nlohmann::json& config,
                                               const std::string& source) {
  const std::string model_type = ConfigReader(config, source).text("model_type");
  if (model_type == "bert") {
    return std::make_unique<BertModel>(BertConfig::parse_bert(config, source));
  }
  if (model_type == "mpnet") {
    return std::make_unique<MPNetModel>(BertConfig::parse_mpnet(config, source));
  }
  fail(ErrorCode::configuration,
       "{}: model_type \"{}\" is no text encoder that is built; there are "
       "bert, mpnet",
       source, model_type);
}

}  // namespace tessera::models

// The keys of `model`: those of every architecture, and those of Hugging Face's config.json by
// architecture, from the architectures' own tables. The latter end up in ModelRecipe::config under
// the same names.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/data/tokenizer.h"
#include "models/registry/registry.h"
#include "training/recipe/fine_tuning.h"
#include "training/recipe/schema.h"
#include "training/recipe/schema_rows.h"
#include "training/recipe/values.h"

namespace tessera::training {
namespace {

using Json = nlohmann::json;
using models::ConfigKey;

Json::json_pointer pointer_to(const std::string& name) {
  std::string path = "/" + name;
  for (char& c : path) {
    if (c == '.') c = '/';
  }
  return Json::json_pointer(path);
}

std::string type_text(const ConfigKey& key) {
  switch (key.type) {
    case ConfigKey::Type::whole:
      return "whole number";
    case ConfigKey::Type::number:
      return "number";
    case ConfigKey::Type::flag:
      return "true \\| false";
    case ConfigKey::Type::choice:
      break;
  }
  std::string text;
  for (const std::string& choice : key.choices) text += (text.empty() ? "" : " \\| ") + choice;
  return text;
}

std::string fallback_text(const ConfigKey& key) {
  switch (key.role) {
    case ConfigKey::Role::vocabulary:
      return "the tokenizer's";
    case ConfigKey::Role::positions:
      return key.reserved > 0 ? fmt::format("`seq_len` + {}", key.reserved) : "`seq_len`";
    case ConfigKey::Role::dropout:
      return "`dropout`";
    case ConfigKey::Role::plain:
      break;
  }
  return key.fallback;
}

Json read_value(const ConfigKey& key, const std::string& name, const YamlNode& node) {
  switch (key.type) {
    case ConfigKey::Type::whole: {
      const std::int64_t value = read_integer(node, name);
      check_range(node, name, key.range, static_cast<double>(value));
      return value;
    }
    case ConfigKey::Type::number: {
      const double value = read_number(node, name);
      check_range(node, name, key.range, value);
      return value;
    }
    case ConfigKey::Type::flag:
      return read_bool(node, name);
    case ConfigKey::Type::choice:
      break;
  }
  std::vector<Choice<std::string>> choices;
  for (const std::string& choice : key.choices) choices.push_back({choice, choice});
  return read_choice(node, name, choices);
}

RecipeKey recipe_key(const ConfigKey& key, std::string_view architecture) {
  RecipeKey row;
  row.name = "model." + key.name;
  row.type = type_text(key);
  row.range = key.range.text();
  row.fallback = fallback_text(key);
  row.help = key.help;
  row.architecture = architecture;
  row.optional = true;
  row.is_dropout_rate = key.role == ConfigKey::Role::dropout;
  const Json::json_pointer pointer = pointer_to(key.name);
  row.read = [=, name = row.name](Recipe& recipe, const YamlNode& node) {
    recipe.model.config[pointer] = read_value(key, name, node);
  };
  row.write = [pointer](const Recipe& recipe) -> Json {
    return recipe.model.config.contains(pointer) ? recipe.model.config.at(pointer) : Json();
  };
  return row;
}

std::optional<Json> value_from_recipe(const Recipe& recipe, const ConfigKey& key) {
  switch (key.role) {
    case ConfigKey::Role::vocabulary:
      return ByteTokenizer().vocabulary_size();
    case ConfigKey::Role::positions:
      return recipe.model.seq_len + key.reserved;
    case ConfigKey::Role::dropout:
      return recipe.model.dropout;
    case ConfigKey::Role::plain:
      break;
  }
  return std::nullopt;
}

std::vector<Choice<std::string>> architecture_choices() {
  std::vector<Choice<std::string>> choices;
  for (const models::Architecture& architecture : models::architectures()) {
    choices.push_back({architecture.model_type, std::string(architecture.model_type)});
  }
  return choices;
}

}  // namespace

std::vector<RecipeKey> model_keys() {
  return {
      choice(TESSERA_KEY(model, architecture), architecture_choices(),
             "The kind of model. With `pretrained`, the folder's config.json decides it."),
      default_is("none",
                 key(TESSERA_KEY(model, pretrained),
                     "A folder that transformers or Tessera saved: its config.json and weights. In "
                     "a folder of steps: the newest complete step. Nothing is downloaded.")),
      key(TESSERA_KEY(model, seq_len), "Tokens in a training sequence.", at_least(1)),
      key(TESSERA_KEY(model, dropout),
          "Sets every dropout rate of the model that is not set by its own key.", from_up_to(0, 1)),
      choice(TESSERA_KEY(model, quantize_aware),
             std::vector<Choice<WeightRounding>>{{"none", WeightRounding::none},
                                                 {"q8_0", WeightRounding::q8_0},
                                                 {"q4_0", WeightRounding::q4_0}},
             "Train with the weights as `convert --to gguf --type q8_0` or `q4_0` rounds them."),
      default_is("none", target_modules_key()),
      default_is("8", key(TESSERA_KEY(model, lora.r), "The rank of the adapters.",
                          Range{1, nn::max_lora_rank, false, false})),
      default_is("16", key(TESSERA_KEY(model, lora.alpha),
                           "The output of an adapter is multiplied by `alpha / r`.", above(0))),
      default_is("0", key(TESSERA_KEY(model, lora.dropout),
                          "The dropout rate of the adapters' input.", from_up_to(0, 1))),
      default_is("false", key(TESSERA_KEY(model, lora.use_rslora),
                              "Multiply by `alpha / sqrt(r)` instead.")),
      default_is("false", key(TESSERA_KEY(model, lora.use_dora),
                              "DoRA: a trained magnitude for each output "
                              "([fine-tuning.md](fine-tuning.md#dora)).")),
      rank_pattern_key(),
      alpha_pattern_key(),
      default_is("none", key(TESSERA_KEY(model, lora.modules_to_save),
                             "Modules that are trained whole beside the adapters and saved with "
                             "them, by the ends of their names as in PEFT: [lm_head, "
                             "embed_tokens].")),
      default_is(
          "none, or with `adapter` that of its step",
          choice(TESSERA_KEY(model, quantize_base),
                 std::vector<Choice<BaseWeights>>{{"none", BaseWeights::none},
                                                  {"nf4", BaseWeights::nf4},
                                                  {"int8", BaseWeights::int8}},
                 "QLoRA: the frozen weights of linear layers but the head as 4-bit NF4 with double "
                 "quantisation, or as 8-bit integers "
                 "([fine-tuning.md](fine-tuning.md#quantised-base)).")),
      default_is("none", key(TESSERA_KEY(model, adapter),
                             "A folder of an adapter, PEFT's or a step of a run with `model.lora`: "
                             "training of its adapters continues, over the base in `pretrained`.")),
  };
}

std::vector<RecipeKey> model_config_keys() {
  std::vector<RecipeKey> rows;
  for (const models::Architecture& architecture : models::architectures()) {
    for (const ConfigKey& key : architecture.keys()) {
      rows.push_back(recipe_key(key, architecture.model_type));
    }
  }
  return rows;
}

models::ConfigSource config_source(const Recipe& recipe) {
  const auto name = [](const std::string& key) { return "model." + key; };
  return {[&recipe, name](const std::string& key) { return where(recipe, name(key)); }, name};
}

void complete_model(Recipe& recipe) {
  if (recipe.model.pretrained) return;
  Json& config = recipe.model.config;
  config["model_type"] = recipe.model.architecture;
  const models::ConfigSource source = config_source(recipe);
  const models::Architecture& architecture = models::architecture_of(config, source);
  for (const ConfigKey& key : architecture.keys()) {
    const auto value = value_from_recipe(recipe, key);
    if (value && !config.contains(key.name)) config[key.name] = *value;
  }
  architecture.complete(config, source);
}

}  // namespace tessera::training

// The keys of Hugging Face's config.json, by architecture, from the architectures' own tables. They
// end up in ModelRecipe::config under the same names.
#include <nlohmann/json.hpp>

#include "engine/data/tokenizer.h"
#include "models/registry/registry.h"
#include "training/recipe/schema.h"
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
      return "`seq_len`";
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

std::optional<Json> value_from_recipe(const Recipe& recipe, ConfigKey::Role role) {
  switch (role) {
    case ConfigKey::Role::vocabulary:
      return ByteTokenizer().vocabulary_size();
    case ConfigKey::Role::positions:
      return recipe.model.seq_len;
    case ConfigKey::Role::dropout:
      return recipe.model.dropout;
    case ConfigKey::Role::plain:
      break;
  }
  return std::nullopt;
}

}  // namespace

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
    const auto value = value_from_recipe(recipe, key.role);
    if (value && !config.contains(key.name)) config[key.name] = *value;
  }
  architecture.complete(config, source);
}

}  // namespace tessera::training

// The recipe's keys as one table: name, type, range, default, meaning, and how a value gets into a
// Recipe and out of it. A new key is a member in training/recipe/recipe.h and a row in
// training/recipe/schema.cpp (the architectures' own keys are in tables in models/).
#pragma once

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/config/config_key.h"
#include "training/recipe/recipe.h"
#include "training/recipe/yaml/yaml_tree.h"

namespace tessera::training {

struct RecipeKey {
  std::string name;   // "train.lr"
  std::string type;   // for people: "whole number", "adamw | sgd"
  std::string range;  // "at least 1", or empty
  // The default in words; empty: the value in a default Recipe. With "none" the key takes `none`
  // as it takes null, unless that is one of its values.
  std::string fallback;
  std::string help;
  std::string architecture;           // the model that has the key; empty: all
  std::vector<std::string> synonyms;  // full names
  bool free_text = false;             // takes the text of --set unchanged
  bool optional = false;              // `key: null` means the default
  bool is_dropout_rate = false;       // a model's key that can be set beside model.pretrained
  std::function<void(Recipe&, const YamlNode&)> read;
  std::function<nlohmann::json(const Recipe&)> write;
};

const std::vector<RecipeKey>& recipe_keys();
std::vector<RecipeKey> model_keys();  // of every architecture
std::vector<RecipeKey> model_config_keys();
std::vector<RecipeKey> compression_keys();  // of a teacher and of pruning
std::vector<RecipeKey> preference_keys();   // of train.task: dpo

// Call it when all keys are read: it fills in values of the architecture's configuration that are
// missing, from the recipe's other keys and the architecture's defaults.
void complete_model(Recipe& recipe);
// Maps the keys of the model's configuration to places in the recipe; the recipe must outlive it.
models::ConfigSource config_source(const Recipe& recipe);

// Unless the condition holds, throws Error(configuration) with the key's place and name before the
// text.
template <class... Args>
void check_key(bool holds, const Recipe& recipe, const std::string& key,
               fmt::format_string<Args...> text, Args&&... args) {
  if (holds) return;
  fail(ErrorCode::configuration, "{}: {} {}", where(recipe, key), key,
       fmt::format(text, std::forward<Args>(args)...));
}

// Adds the key's place and name to an Error of the work; returns its result.
template <class Work>
auto at_key(const Recipe& recipe, const std::string& key, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}: {}", where(recipe, key), key, error.what()));
  }
}

// docs/recipe.md's tables.
std::string recipe_reference();

}  // namespace tessera::training

// The recipe's keys as one table: name, type, range, default, meaning, and how a value gets in and
// out of a Recipe. Adding a key is a member in cli/recipe.h and a row in cli/recipe_schema.cpp
// (cli/recipe_model_keys.cpp for the model's).
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/recipe.h"
#include "cli/yaml_tree.h"

namespace tessera::cli {

struct RecipeKey {
  std::string name;      // "train.lr"
  std::string type;      // for people: "whole number", "adamw | sgd"
  std::string range;     // "at least 1", or nothing
  std::string fallback;  // the default in words; empty: the value that a default Recipe has
  std::string help;
  std::string architecture;           // of the model that has the key; empty: all
  std::vector<std::string> synonyms;  // full names
  bool free_text = false;             // takes the text of --set as it stands
  bool optional = false;              // `key: null` means the default
  std::function<void(Recipe&, const YamlNode&)> read;
  std::function<nlohmann::json(const Recipe&)> write;
  std::function<void(Recipe&)>
      complete;  // after all are read: a default that depends on other keys; may be empty
};

const std::vector<RecipeKey>& recipe_keys();
std::vector<RecipeKey> model_config_keys();

// docs/recipe.md's tables.
std::string recipe_reference();

}  // namespace tessera::cli

// The recipe's values that are data sets: a file, a list of files, or groups of keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "training/recipe/recipe.h"
#include "training/recipe/yaml/yaml_tree.h"

namespace tessera::training {

// `key` is the recipe's ("data.train"), for messages.
std::vector<DataSetRecipe> read_data_sets(const YamlNode& node, const std::string& key);
nlohmann::json write_data_sets(const std::vector<DataSetRecipe>& sets);

// The table of the keys of a data set, for docs/recipe.md.
std::string data_set_reference();

}  // namespace tessera::training

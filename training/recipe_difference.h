// Whether a run can go on from a step of another recipe.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "training/recipe/recipe.h"

namespace tessera::cli {

// A key, its value in the step's recipe and in this one, as people write them.
struct RecipeDifference {
  std::string key, saved, own;
};

// What a step of a run says of itself: its recipe.json, and its config.json (null: it has none, as
// of an adapter).
struct SavedRecipe {
  nlohmann::json recipe, config;
  std::string step = {};    // its folder
  bool has_pooler = false;  // models::pooler_weight, where that was asked for
};

// That of a step's folder, or of the step saved last in a folder of steps, as a text that ranks can
// exchange; empty where there is no step, or a damaged one: the load finds that, and says it or
// passes it over.
std::string describe_step(const std::string& path, bool with_pooler);
SavedRecipe parse_step_description(const std::string& description);

// The keys that decide which tensors a run has, or what a model makes of them, and that differ:
// the model's (its dropout rates and its initial values may change), the adapters', the task and
// the optimizer. `config` is this run's model's config.json. Keys that the step's files do not have
// do not count.
std::vector<RecipeDifference> decisive_differences(const SavedRecipe& saved, const Recipe& recipe,
                                                   const nlohmann::json& config);

// Error(configuration) that names them all, where there are such. `step` is the step's folder.
void require_same_training(const std::vector<RecipeDifference>& differences,
                           const std::string& step);

}  // namespace tessera::cli

// Decides if a run can go on from a step of another recipe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "training/recipe/recipe.h"

namespace tessera::training {

// A key, and its values in the step's recipe and in this one, as people write them; empty: it is
// absent.
struct RecipeDifference {
  std::string key, saved, own;
};

// A step's own description: its recipe.json, and its config.json (null if it has none, like an
// adapter's step).
struct SavedRecipe {
  nlohmann::json recipe, config;
  std::string step = {};    // its folder
  bool has_pooler = false;  // it has models::pooler_weight; false if this was not asked
  std::int64_t steps = 0;   // that were taken
};

// The description of a step's folder, or of the step saved last in a folder of steps, as a text
// that ranks can exchange. Empty without a step, or with a damaged one: the load finds the damage
// and reports or skips it.
std::string describe_step(const std::string& path, bool with_pooler);
SavedRecipe parse_step_description(const std::string& description);

// The keys that differ and that decide which tensors a run has, or what a model computes from them:
// the keys of the model (its dropout rates and its initial values may change), the adapters, the
// task and the optimizer. If the step has pruned weights, also keys with which they would be
// trained again, or would not be what the recipe says: the zeros of two methods together, or more
// zeros than a lower sparsity. `config` is this run's model's config.json. Keys that the step's
// files do not have do not count.
std::vector<RecipeDifference> decisive_differences(const SavedRecipe& saved, const Recipe& recipe,
                                                   const nlohmann::json& config);

// Other keys that differ and that a user should know of, after decisive_differences() has found
// nothing: those of train.prune, because the run chooses its next weights by its own, and the
// folder of the base under an adapter, which may have moved or may hold other weights. Throws
// Error(configuration) if the run would choose no weights any more, though the step lacks zeros
// that the recipe asks for.
std::vector<RecipeDifference> allowed_changes(const SavedRecipe& saved, const Recipe& recipe);

// "key value, no key" of the step, and of this run.
std::pair<std::string, std::string> texts_of(const std::vector<RecipeDifference>& differences);

// Error(configuration) with all of them, if there are any. `step` is the step's folder.
void require_same_training(const std::vector<RecipeDifference>& differences,
                           const std::string& step);

}  // namespace tessera::training

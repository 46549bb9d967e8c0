// What a configuration file does here, and what it costs a recipe.
#pragma once

#include <functional>
#include <string>

#include "training/recipe/accelerate/config.h"

namespace tessera::cli {

// Each key of the file with what it becomes in `recipe`, which was read under it.
std::string explain_settings(const AccelerateConfig& config, const Recipe& recipe);

// From the plan: what a rank holds and moves under the file, and the difference that each of its
// settings makes. `recipe_under` reads the recipe under another configuration.
std::string explain_costs(const AccelerateConfig& config, const Recipe& recipe,
                          const std::function<Recipe(const AccelerateConfig&)>& recipe_under,
                          int ranks);

}  // namespace tessera::cli

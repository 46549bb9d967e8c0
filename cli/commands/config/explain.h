// Explains the effect of a configuration file, and its cost for a recipe.
#pragma once

#include <functional>
#include <string>

#include "training/recipe/accelerate/config.h"

namespace tessera::cli {

// docs/from-accelerate.md's tables.
std::string accelerate_reference();

// Each key of the file with the key that it sets in `recipe`, which was read under the file.
std::string explain_settings(const training::AccelerateConfig& config,
                             const training::Recipe& recipe);

// From the plan: a rank's memory and traffic under the file, and the difference that each of its
// settings makes. `recipe_under` reads the recipe under another configuration.
std::string explain_costs(
    const training::AccelerateConfig& config, const training::Recipe& recipe,
    const std::function<training::Recipe(const training::AccelerateConfig&)>& recipe_under,
    int ranks);

}  // namespace tessera::cli

// The keys of fine-tuning that are more than a number: which modules get an adapter, and groups of
// parameters; and the modules that are frozen because sharding leaves them alone.
#pragma once

#include "training/recipe/schema.h"

namespace tessera::cli {

// Checks between these keys and others. Error(configuration).
void validate_fine_tuning(const Recipe& recipe);

// The rows of the table for them.
RecipeKey target_modules_key();
RecipeKey ignored_modules_key();
RecipeKey parameter_groups_key();

}  // namespace tessera::cli

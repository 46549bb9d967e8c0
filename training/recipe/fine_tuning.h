// The keys of fine-tuning that are more than a number: the modules that get an adapter, groups of
// parameters, and the modules that are frozen because they are not sharded.
#pragma once

#include "training/recipe/schema.h"

namespace tessera::training {

// Checks these keys against others. Error(configuration).
void validate_fine_tuning(const Recipe& recipe);

// Their rows in the table.
RecipeKey target_modules_key();
RecipeKey ignored_modules_key();
RecipeKey parameter_groups_key();

}  // namespace tessera::training

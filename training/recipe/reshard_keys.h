// The recipe's keys that decide when parameters are gathered and freed: checks between them and
// against the number of ranks.
#pragma once

#include "training/recipe/schema.h"

namespace tessera::training {

// Error(configuration), with the key's place in the recipe.
void validate_schedule(const Recipe& recipe, int world_size);

// The row of `sharding.reshard_after_forward` in the table.
RecipeKey reshard_after_forward_key();

}  // namespace tessera::training

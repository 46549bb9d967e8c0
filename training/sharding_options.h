// From the keys of a recipe to the options of a sharded module.
#pragma once

#include <string>

#include "sharding/context/context.h"
#include "sharding/policy/options.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// The options of the trained module. `layer_class`: the class of its repeated layer.
ShardingOptions sharding_options(const Recipe& recipe, const Context& context,
                                 const std::string& layer_class);
// Those of a model that only computes beside it, under the same strategy, wholly in the recipe's
// dtype of compute. Keys that name modules or classes mean the trained module's: this one is
// divided by its own layers.
ShardingOptions frozen_sharding_options(const Recipe& recipe, const Context& context,
                                        const std::string& layer_class);

}  // namespace tessera::training

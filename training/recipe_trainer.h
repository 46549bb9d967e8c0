// The one place where a recipe becomes a Trainer.
#pragma once

#include "sharding/context/context.h"
#include "trainer/trainer.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// Collective. For a pretrained folder of steps it takes the newest complete step. On a planned
// device (sharding/plan/plan.h) it reads no data.
Trainer make_trainer(const Recipe& recipe, const Context& context);

}  // namespace tessera::training

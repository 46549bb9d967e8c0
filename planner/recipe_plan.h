// The memory plan of a recipe: `tessera plan` prints it, and `tessera train` compares itself with
// it.
#pragma once

#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// What the recipe's training steps hold and move on rank 0 of the world: the run itself, without
// its data, on a planned device. `sharding.group_size` has to be set for HYBRID_*. Throws
// Error(configuration) for what the run would refuse. The first step makes what stays, the moments
// above all; the second is as all after it.
MemoryPlan plan_recipe(const Recipe& recipe, const PlanWorld& world, int steps = 2);

// Throws Error(configuration) for a world that no run could be: more CPU ranks than one host takes.
void check_planned_world(const PlanWorld& world);

// The recipe with the groups of the run's ranks, where it leaves them to the launcher.
Recipe recipe_for_plan(const Recipe& recipe, const Context& context);

// The world that a run is part of, for comparing it with its plan.
PlanWorld planned_world_of(const Context& context, const Recipe& recipe);

}  // namespace tessera::cli

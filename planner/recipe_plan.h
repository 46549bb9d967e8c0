// The memory plan of a recipe: `tessera plan` prints it, and `tessera train` compares its memory
// with it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::planner {

// The memory and the traffic of the recipe's training steps on rank 0 of the world: it is the run
// itself, without its data, on a planned device. `sharding.group_size` must be set for HYBRID_*.
// Throws Error(configuration) where the run would. The first step creates the lasting state, above
// all the moments; the second step is like all later steps. With data.rank_weights, ranks differ in
// the samples of their batches alone: the plan is that of a rank with `share` samples, by default
// the largest part that a rank may take.
MemoryPlan plan_recipe(const training::Recipe& recipe, const PlanWorld& world, int steps = 2,
                       std::optional<std::int64_t> share = {});

// The samples of a rank's batch, for each rank, as a run begins.
std::vector<std::int64_t> shares_at_first(const training::Recipe& recipe, int ranks);
// The largest part that a rank may take.
std::int64_t largest_share(const training::Recipe& recipe, int ranks);

// Throws Error(configuration) for a world that cannot exist: more CPU ranks than one node can have.
void check_planned_world(const PlanWorld& world);

// The recipe with the groups of the run's ranks, if it leaves them to the launcher.
training::Recipe recipe_for_plan(const training::Recipe& recipe, const Context& context);

// The world that a run is part of, for comparing it with its plan.
PlanWorld planned_world_of(const Context& context, const training::Recipe& recipe);

}  // namespace tessera::planner

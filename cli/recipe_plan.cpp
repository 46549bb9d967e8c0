// Training runs that are only counted.
#include "cli/recipe_plan.h"

#include "cli/training_run.h"

namespace tessera::cli {

MemoryPlan plan_recipe(const Recipe& recipe, const PlanWorld& world, int steps) {
  return plan(world, [&](Planning& planning) {
    TrainingRun run(recipe, planning.context());
    for (int step = 0; step < steps; ++step) {
      (void)run.step();
      planning.end_step();
    }
  });
}

PlanWorld planned_world_of(const Context& context, const Recipe& recipe) {
  return {.ranks = context.world_size(),
          .device = context.device().type,
          .one_memory = context.communicator().one_memory(),
          .fixed_reduction_order = recipe.sharding.fixed_reduction_order};
}

}  // namespace tessera::cli

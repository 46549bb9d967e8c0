// Training runs that only count.
#include "planner/recipe_plan.h"

#include "base/error.h"
#include "comm/shared/join/rendezvous.h"
#include "training/recipe_trainer.h"

namespace tessera::planner {

MemoryPlan plan_recipe(const training::Recipe& recipe, const PlanWorld& world, int steps) {
  return plan(world, [&](Planning& planning) {
    Trainer run = training::make_trainer(recipe, planning.context());
    for (int step = 0; step < steps; ++step) {
      (void)run.step();
      planning.end_step();
    }
  });
}

void check_planned_world(const PlanWorld& world) {
  TESSERA_CHECK(
      world.device != DeviceType::cpu || world.ranks <= comm::max_ranks_on_node,
      ErrorCode::configuration,
      "--world-size {}: CPU ranks are on one node, at most {}; plan for GPUs with --device cuda",
      world.ranks, comm::max_ranks_on_node);
}

training::Recipe recipe_for_plan(const training::Recipe& recipe, const Context& context) {
  training::Recipe planned = recipe;
  if (!planned.sharding.group_size) planned.sharding.group_size = context.world().local_size;
  return planned;
}

PlanWorld planned_world_of(const Context& context, const training::Recipe& recipe) {
  return {.ranks = context.world_size(),
          .device = context.device().type,
          .one_memory = context.communicator().one_memory(),
          .ranks_per_host = context.communicator().ranks_per_host(),
          .fixed_reduction_order = recipe.sharding.fixed_reduction_order};
}

}  // namespace tessera::planner

// Training runs that only count.
#include "planner/recipe_plan.h"

#include "base/error.h"
#include "comm/shared/join/rendezvous.h"
#include "training/recipe_trainer.h"

namespace tessera::planner {
namespace {

// Rank 0, which is planned, takes so many samples.
training::Recipe recipe_with_share(const training::Recipe& recipe, int ranks, std::int64_t share) {
  training::Recipe planned = recipe;
  if (recipe.data.rank_weights.are_equal()) return planned;
  planned.data.rank_weights = {};
  const std::int64_t all = training::batch_size_per_rank(recipe, ranks) * ranks;
  TESSERA_REQUIRE(share >= 1 && share <= all - (ranks - 1),
                  "the plan of a rank with {} of {} samples in a world of {}", share, all, ranks);
  if (ranks == 1) return planned;
  // Whole numbers with the sum of the samples are the parts themselves.
  const std::vector<double> equal(static_cast<std::size_t>(ranks - 1), 1);
  planned.data.rank_weights.given = {static_cast<double>(share)};
  for (const std::int64_t other : divide_samples(equal, all - share)) {
    planned.data.rank_weights.given.push_back(static_cast<double>(other));
  }
  return planned;
}

}  // namespace

std::vector<std::int64_t> shares_at_first(const training::Recipe& recipe, int ranks) {
  const std::int64_t equal = training::batch_size_per_rank(recipe, ranks);
  const std::vector<double>& weights = recipe.data.rank_weights.given;
  if (weights.empty()) return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), equal);
  return divide_samples(weights, equal * ranks);
}

std::int64_t largest_share(const training::Recipe& recipe, int ranks) {
  return tessera::largest_share(recipe.data.rank_weights, ranks,
                                training::batch_size_per_rank(recipe, ranks));
}

MemoryPlan plan_recipe(const training::Recipe& recipe, const PlanWorld& world, int steps,
                       std::optional<std::int64_t> share) {
  const training::Recipe planned =
      recipe_with_share(recipe, world.ranks, share.value_or(largest_share(recipe, world.ranks)));
  return plan(world, [&](Planning& planning) {
    Trainer run = training::make_trainer(planned, planning.context());
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

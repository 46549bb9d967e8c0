// Suggests changes when a plan does not fit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/report.h"

namespace tessera::planner {

// Changes that make the recipe fit into `memory`, cheapest first, at most three. They are tried in
// this order:
//   1. another strategy, in the order of the bytes that they move; the results keep their bits;
//   2. smaller batches and more of them in a step: the same samples, more calls;
//   3. recomputation: the same bits, about one forward more; on GPUs with its inputs on the host;
//   4. offload, moments first, then all three: the same bits, but transfers limit a step: to the
//      host from a GPU, to files (in a folder that the user names) from CPUs;
//   5. bf16 instead of fp32: other bits;
//   6. several of these;
//   7. more ranks.
// If none of these is enough, `fitting` is empty and `least` is the change that needs least memory.
struct Advices {
  std::vector<Advice> fitting;
  std::optional<Advice> least;
};
Advices advise(const training::Recipe& recipe, const PlanWorld& world, const MemoryBudget& memory);

// The number of ranks that hold one copy in HYBRID_*: the recipe's, else 8 or the largest divisor
// of the world below it.
std::int64_t planned_group_size(const training::Recipe& recipe, int world_size);

// The plan of the recipe with this strategy, or the reason why it was refused.
StrategyPlan plan_strategy(const training::Recipe& recipe, const PlanWorld& world,
                           Strategy strategy);

// Fills row.shares: one more plan for each number of samples that a rank takes.
void plan_shares(const training::Recipe& recipe, const PlanWorld& world, StrategyPlan& row);

}  // namespace tessera::planner

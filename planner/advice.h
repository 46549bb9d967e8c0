// What to change when a plan does not fit.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/report.h"

namespace tessera::cli {

// Changes that make the recipe fit into `memory`, cheapest first, at most three:
//   1. another strategy, in the order of what they move; the results keep their bits;
//   2. smaller batches, more of them in a step: as many samples, more calls;
//   3. recomputation: the same bits, about one forward more; on GPUs with its inputs on the host;
//   4. offload, moments first, then all three: the same bits, and steps at the rate of the way
//      there: to the host from a GPU, to files (of a folder that is to be named) from CPUs;
//   5. bf16 instead of fp32: other bits;
//   6. several of these;
//   7. more ranks.
// Where nothing of that is enough, none, and what holds least.
struct Advices {
  std::vector<Advice> fitting;
  std::optional<Advice> least;
};
Advices advise(const Recipe& recipe, const PlanWorld& world, const MemoryBudget& memory);

// Ranks that hold one copy in HYBRID_*: the recipe's number, else 8 or the largest divisor of the
// world below it.
std::int64_t planned_group_size(const Recipe& recipe, int world_size);

// The recipe with this strategy, its plan, or why it was refused.
StrategyPlan plan_strategy(const Recipe& recipe, const PlanWorld& world, Strategy strategy);

}  // namespace tessera::cli

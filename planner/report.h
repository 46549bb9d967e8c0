// Plans as text and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::planner {

// With data.rank_weights: the memory of the ranks that take so many samples.
struct SharePlan {
  std::int64_t samples = 0;
  std::vector<int> ranks;
  RankMemory memory;
};

// The plan of one strategy, or the reason why there is none. With data.rank_weights it is that of a
// rank with the largest part.
struct StrategyPlan {
  Strategy strategy = Strategy::full_shard;
  std::int64_t group_size = 0;  // for HYBRID_*; else 0
  std::optional<MemoryPlan> plan;
  std::string refused;
  std::vector<SharePlan> shares = {};  // of given weights, the largest first; filled by plan_shares
};

// The memory that ranks may use.
struct MemoryBudget {
  std::uint64_t bytes = 0;
  bool of_host = false;  // for all ranks together; else for each rank
  [[nodiscard]] std::uint64_t of_rank(int ranks) const {
    return of_host ? bytes / static_cast<std::uint64_t>(ranks) : bytes;
  }
};

// A change of the recipe or of the world with which the run would fit.
struct Advice {
  std::vector<std::string> changes;  // "sharding.sharding_strategy=FULL_SHARD", "--world-size 16"
  std::uint64_t total = 0;           // bytes of a rank with the change
  std::uint64_t saved = 0;           // bytes less than without the change
};

struct PlanReport {
  const training::Recipe& recipe;
  PlanWorld world;
  std::optional<std::uint64_t> device_memory;  // for one rank
  std::string device_memory_of = {};           // "this machine" if the user gave no memory
  std::vector<StrategyPlan> plans;
  std::vector<Advice> advice;
  std::optional<Advice> least;  // the best of all tried, if nothing fits
};

// True if a rank's bytes fit, or if no memory was given.
bool fits(const PlanReport& report, const MemoryPlan& plan);
bool something_fits(const PlanReport& report);

std::string plan_text(const PlanReport& report);
nlohmann::ordered_json plan_json(const PlanReport& report);
// {"parameters": bytes, ..., "total": bytes}
nlohmann::ordered_json kinds_json(const RankMemory& memory);
// {"total": RankMemory::placed, "places": step_placed, "live": step_live}
nlohmann::ordered_json placed_json(const RankMemory& memory);
// The same for memory elsewhere (RankMemory::in_files, on_host); only the kinds that have some.
nlohmann::ordered_json elsewhere_json(const MemoryUse& use);

}  // namespace tessera::planner

// Plans for people and for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// One strategy's plan, or why there is none.
struct StrategyPlan {
  Strategy strategy = Strategy::full_shard;
  std::int64_t group_size = 0;  // of HYBRID_*; else 0
  std::optional<MemoryPlan> plan;
  std::string refused;
};

// What ranks may take.
struct MemoryBudget {
  std::uint64_t bytes = 0;
  bool of_host = false;  // all ranks together; else each rank
  [[nodiscard]] std::uint64_t of_rank(int ranks) const {
    return of_host ? bytes / static_cast<std::uint64_t>(ranks) : bytes;
  }
};

// A change of the recipe or the world with which it would fit.
struct Advice {
  std::vector<std::string> changes;  // "sharding.sharding_strategy=FULL_SHARD", "--world-size 16"
  std::uint64_t total = 0;           // bytes of a rank then
  std::uint64_t saved = 0;           // less than the recipe takes as it is
};

struct PlanReport {
  const Recipe& recipe;
  PlanWorld world;
  std::optional<std::uint64_t> device_memory;  // of a rank
  std::string device_memory_of = {};           // "this machine": where nobody named it
  std::vector<StrategyPlan> plans;
  std::vector<Advice> advice;
  std::optional<Advice> least;  // of all that was tried, where nothing fits
};

// Whether a rank's bytes fit; true where no memory was given.
bool fits(const PlanReport& report, const MemoryPlan& plan);
bool something_fits(const PlanReport& report);

std::string plan_text(const PlanReport& report);
nlohmann::ordered_json plan_json(const PlanReport& report);
// {"parameters": bytes, ..., "total": bytes}
nlohmann::ordered_json kinds_json(const RankMemory& memory);
// The same of what lies elsewhere (RankMemory::in_files, on_host), of the kinds that do.
nlohmann::ordered_json elsewhere_json(const MemoryUse& use);

}  // namespace tessera::cli

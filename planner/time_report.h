// Plans with time: a row for each requested strategy, world and setting, on a cluster.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/report.h"
#include "sharding/plan/cluster.h"
#include "sharding/plan/plan_time.h"

namespace tessera::planner {

struct TimedRow {
  std::string name;  // the strategy's; "none", "dp"
  StrategyPlan row;
  PlanWorld world;
  std::vector<std::string> settings = {};  // "sharding.activation_checkpointing=full"
  double samples = 0;                      // in a step, all ranks
  std::optional<double> tokens = {};       // for language models
  std::optional<PredictedStep> time = {};
  double mfu = 0;
  std::string untimed = {};  // the reason why the time is missing
};

// The plan and time of a strategy, or the reason why there is none.
TimedRow timed_row(const StrategyPlan& plan, const PlanWorld& world, const training::Recipe& recipe,
                   const Cluster& cluster);
// Rows of one rank without sharding, and of `world.ranks` GPUs under torch's DataParallel. Each
// computes the batch of a rank of that world.
TimedRow row_of_one_rank(const PlanWorld& world, const training::Recipe& recipe,
                         const Cluster& cluster);
TimedRow row_of_data_parallel(const PlanWorld& world, const training::Recipe& recipe,
                              const Cluster& cluster);

// True if a row was planned and fits; without a given memory, every planned row fits.
bool any_row_fits(const std::vector<TimedRow>& rows, std::optional<std::uint64_t> device_memory);

// The fastest row of a world that fits.
struct Recommendation {
  const TimedRow* row = nullptr;
  std::string reason;
};
std::vector<Recommendation> recommend(const std::vector<TimedRow>& rows,
                                      std::optional<std::uint64_t> device_memory);

std::string time_text(const std::vector<TimedRow>& rows, const Cluster& cluster,
                      std::optional<std::uint64_t> device_memory);
// Adds `format`, `cluster`, `rows`, `recommendations` and `mfu_formula`.
void add_time_json(nlohmann::ordered_json& json, const std::vector<TimedRow>& rows,
                   const Cluster& cluster, std::optional<std::uint64_t> device_memory);

}  // namespace tessera::planner

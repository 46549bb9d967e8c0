// `tessera plan --sweep`: axes of keys and values, and every combination of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sharding/policy/strategy.h"

namespace tessera::planner {

// The strategies that --strategy names. `none` and `dp` have a time but no plan of their own.
struct AskedStrategies {
  std::vector<Strategy> sharded;
  bool none = false;  // one rank
  bool dp = false;    // torch's DataParallel
};
// "all", which means all sharding strategies, or a list. Error(usage) that begins with `option`.
AskedStrategies strategies_named(const std::string& text, const std::string& option);

// The sharding strategies' names.
std::string strategy_names(std::string_view separator);

struct SweepPoint {
  int world_size = 1;
  AskedStrategies strategies;         // empty: those of --strategy
  std::vector<std::string> settings;  // "sharding.backward_prefetch=NO_PREFETCH", as --set takes it
};

// From axes like "world_size=8,16", "strategy=NO_SHARD,FULL_SHARD", "train.optimizer=adamw,sgd".
// Error(usage) for an invalid axis, and for too many combinations.
std::vector<SweepPoint> sweep_points(const std::vector<std::string>& axes, int world_size);

}  // namespace tessera::planner

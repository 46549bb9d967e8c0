// `tessera plan --sweep`: axes of keys and values, and every combination of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sharding/policy/strategy.h"

namespace tessera::cli {

// What --strategy names. `none` and `dp` have a time and no plan of their own.
struct AskedStrategies {
  std::vector<Strategy> sharded;
  bool none = false;  // one rank
  bool dp = false;    // torch's DataParallel
};
// "all", which are the sharding strategies, or a list; Error(usage) that begins with `option`.
AskedStrategies strategies_named(const std::string& text, const std::string& option);

// The sharding strategies' names.
std::string strategy_names(std::string_view separator);

struct SweepPoint {
  int world_size = 1;
  AskedStrategies strategies;         // none: as asked for otherwise
  std::vector<std::string> settings;  // "sharding.backward_prefetch=NO_PREFETCH", as --set takes it
};

// Of axes as "world_size=8,16", "strategy=NO_SHARD,FULL_SHARD", "train.optimizer=adamw,sgd".
// Error(usage) for what is none, and for more combinations than can be of use.
std::vector<SweepPoint> sweep_points(const std::vector<std::string>& axes, int world_size);

}  // namespace tessera::cli

// How long a unit's gathered parameters stay, and which part of them is kept between its forward
// and its backward: the strategy's rule, unless `reshard_after_forward` overrides it.
#pragma once

#include <string_view>
#include <vector>

#include "sharding/policy/options.h"

namespace tessera {

struct ReshardPlan {
  Gathered gathered = Gathered::per_pass;
  // Above 0: when the unit is freed, this many ranks keep one copy together until it changes.
  int ranks = 0;
};

// The plan of a unit whose copy is spread over `shards` ranks; the root's name is empty. The
// options must have passed check_reshard().
ReshardPlan reshard_of(const ShardingOptions& options, std::string_view unit, int shards);

// Error(configuration) for impossible options: a number of ranks that does not divide, names of
// unknown units, contradictions. `units` are names, the root first.
void check_reshard(const ShardingOptions& options, const std::vector<std::string_view>& units,
                   int shards);

// The number of units that are gathered ahead of the present one.
int prefetched_units(const ShardingOptions& options);

}  // namespace tessera

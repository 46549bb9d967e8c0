// How long a unit's gathered parameters stay, and what is kept of them between its forward and its
// backward: what the strategy says, and what `reshard_after_forward` says instead.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "engine/device/device.h"
#include "sharding/memory/layout.h"
#include "sharding/policy/options.h"

namespace tessera {

struct ReshardPlan {
  Gathered gathered = Gathered::per_pass;
  // Above 0: when the unit is freed, so many ranks hold one copy between them until it changes.
  int ranks = 0;
};

// Of a unit whose copy lies between `shards` ranks; the root has no name. Options that
// check_reshard() has let pass.
ReshardPlan reshard_of(const ShardingOptions& options, std::string_view unit, int shards);

// Error(configuration) for options that cannot be had: a number of ranks that divides nothing,
// names of no unit, contradictions. `units` are names, the root's first.
void check_reshard(const ShardingOptions& options, const std::vector<std::string_view>& units,
                   int shards);

// How many units are gathered ahead of the one at work.
int prefetched_units(const ShardingOptions& options);

// A rank's part of a unit that is resharded to `ranks` ranks: of each segment one of as many equal
// parts, one behind the other.
std::size_t resharded_bytes(const UnitLayout& layout, int ranks);
// From the flat buffer, and back to its place there, in the calling thread's current queue.
void keep_resharded(const UnitLayout& layout, int ranks, int rank, const std::byte* flat,
                    std::byte* part, Device device);
void restore_resharded(const UnitLayout& layout, int ranks, int rank, const std::byte* part,
                       std::byte* flat, Device device);

}  // namespace tessera

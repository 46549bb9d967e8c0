// What parameters and gradients travel as, where that is not the type in which they are computed
// with. One answer for the plan and for the runtime.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/communicator.h"
#include "sharding/memory/layout.h"
#include "sharding/policy/options.h"

namespace tessera {

// Error(configuration) for formats that there are not for gradients.
void check_wires(const ShardingOptions& options);

// Never wider than the type itself, and of floats of 32 bits at most. Parameters that keep a wider
// type than ShardingOptions::param_dtype keep it on the way.
WireFormat gather_wire_of(const UnitLayout::Segment& segment, const ShardingOptions& options);
WireFormat reduce_wire_of(DType gradient, const ShardingOptions& options);

// Of these segments of a unit; between several shards.
std::vector<comm::GatheredRange> ranges_to_gather(const UnitLayout& layout, bool frozen_too,
                                                  const ShardingOptions& options);

// Rounds what is about to travel, in the calling thread's current queue: one shard's share of each
// of `ranges`, or elements of a gradient.
void round_share(Device device, std::byte* buffer, const std::vector<comm::GatheredRange>& ranges,
                 int shards, int shard);
void round_gradient(Device device, std::byte* gradient, std::int64_t elements, DType dtype,
                    WireFormat wire);

}  // namespace tessera

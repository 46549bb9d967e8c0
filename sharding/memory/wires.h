// The formats in which parameters and gradients travel, when they differ from the compute type. The
// plan and the runtime share these functions.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/communicator.h"
#include "sharding/memory/layout.h"
#include "sharding/policy/options.h"

namespace tessera {

// Error(configuration) for formats that gradients do not support.
void check_wires(const ShardingOptions& options);

// Never wider than the type itself, and only for floats of at most 32 bits. Parameters that keep a
// wider type than ShardingOptions::param_dtype also keep it when they travel.
WireFormat gather_wire_of(const UnitLayout::Segment& segment, const ShardingOptions& options);
WireFormat reduce_wire_of(DType gradient, const ShardingOptions& options);

// The ranges of these segments of a unit; for several shards.
std::vector<comm::GatheredRange> ranges_to_gather(const UnitLayout& layout, bool frozen_too,
                                                  const ShardingOptions& options);

// Rounds data that is about to travel, in the calling thread's current queue: one shard's part of
// each of `ranges`, or elements of a gradient.
void round_share(Device device, std::byte* buffer, const std::vector<comm::GatheredRange>& ranges,
                 int shards, int shard);
void round_gradient(Device device, std::byte* gradient, std::int64_t elements, DType dtype,
                    WireFormat wire);

}  // namespace tessera

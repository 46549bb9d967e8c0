// The part of a freed unit that a rank keeps until its backward (sharding/policy/reshard_policy.h).
#pragma once

#include <cstddef>

#include "engine/device/device.h"
#include "sharding/memory/layout.h"

namespace tessera {

// A rank's part of a unit that is resharded to `ranks` ranks: each segment is cut into `ranks`
// equal parts, and the rank's parts follow one another.
std::size_t resharded_bytes(const UnitLayout& layout, int ranks);
// Copies the part from the flat parameter, or back to its place there, in the calling thread's
// current queue.
void keep_resharded(const UnitLayout& layout, int ranks, int rank, const std::byte* flat,
                    std::byte* part, Device device);
void restore_resharded(const UnitLayout& layout, int ranks, int rank, const std::byte* part,
                       std::byte* flat, Device device);

}  // namespace tessera

// The memory in which reductions keep intermediate results: how much, by arithmetic alone. What a
// plan counts and what Communicator::reserve_scratch() is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sharding/comm/communicator.h"

namespace tessera::comm {

// Ranks that see one memory. all_reduce works in pieces of this many bytes...
std::size_t sum_chunk_bytes(Device device);
// ... unless every rank sums for itself: `bytes` of a region, `ranks` of them.
bool sums_for_itself(int ranks, std::uint64_t bytes, const Reduction& reduction);
std::size_t shared_all_reduce_scratch(Device device, int ranks, std::uint64_t bytes,
                                      const Reduction& reduction);

// Ranks with a GPU each, over NCCL. `counts` are the elements of this rank's ranges.
std::size_t nccl_reduce_scatter_scratch(const std::vector<std::int64_t>& counts, int ranks,
                                        DType in_dtype, bool fixed_order);
std::size_t nccl_all_reduce_scratch(std::int64_t count, int ranks, DType in_dtype,
                                    bool fixed_order);
// all_reduce in the fixed order works in pieces of this many elements.
inline constexpr std::int64_t nccl_piece_elements = std::int64_t{1} << 24;
// What lies in the scratch begins at multiples of this.
inline constexpr std::size_t nccl_scratch_alignment = 256;

}  // namespace tessera::comm

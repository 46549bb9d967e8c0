// The size of the memory in which reductions keep intermediate results. This file only computes;
// plans and Communicator::reserve_scratch() use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace tessera::comm {

// For ranks that see one memory. all_reduce works in pieces of this many bytes...
std::size_t sum_chunk_bytes(Device device);
// ... unless every rank sums for itself: `bytes` of a region, `ranks` of them.
bool sums_for_itself(int ranks, std::uint64_t bytes, const Reduction& reduction);
std::size_t shared_all_reduce_scratch(Device device, int ranks, std::uint64_t bytes,
                                      const Reduction& reduction);

// For ranks with a GPU each, over NCCL, whose sums have the type that travels: data of 16 bits or
// fewer is sent to the rank that sums it, in fp32 in the fixed order.
constexpr bool nccl_sums_for_itself(DType in_dtype, bool fixed_order, WireFormat wire) {
  return !fixed_order && wire == WireFormat::same && size_of(in_dtype) > 2;
}
// `counts` are the elements of this rank's ranges.
std::size_t nccl_reduce_scatter_scratch(const std::vector<std::int64_t>& counts, int ranks,
                                        DType in_dtype, bool fixed_order,
                                        WireFormat wire = WireFormat::same);
std::size_t nccl_all_reduce_scratch(std::int64_t count, int ranks, DType in_dtype, bool fixed_order,
                                    WireFormat wire = WireFormat::same);
std::size_t nccl_all_gather_scratch(const std::vector<GatheredRange>& ranges, int ranks);
// all_reduce in the fixed order works in pieces of this many elements.
inline constexpr std::int64_t nccl_piece_elements = std::int64_t{1} << 24;
// Parts of the scratch begin at multiples of this.
inline constexpr std::size_t nccl_scratch_alignment = 256;
// Elements of each rank's part of a piece of `length`.
std::int64_t nccl_share_of_piece(std::int64_t length, int ranks, WireFormat wire);

// Bytes that reach each rank from the others, wherever they are.
std::uint64_t gathered_bytes(const std::vector<GatheredRange>& ranges, int ranks);
std::uint64_t scattered_bytes(const std::vector<std::int64_t>& counts, int ranks, DType in_dtype,
                              WireFormat wire);
// Data moves twice: to the rank that sums it, and the sums, in fp32 or fp64, from there.
std::uint64_t all_reduced_bytes(std::int64_t count, int ranks, DType in_dtype, WireFormat wire);

}  // namespace tessera::comm

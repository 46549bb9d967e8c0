// Sizes of intermediate results.
#include "sharding/comm/scratch.h"

#include <algorithm>

namespace tessera::comm {
namespace {

// Below this, all ranks' contents together, every rank sums for itself.
constexpr std::size_t direct_sum_bytes = std::size_t{64} << 10;

std::size_t aligned_bytes(std::int64_t count, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  return (bytes + nccl_scratch_alignment - 1) / nccl_scratch_alignment * nccl_scratch_alignment;
}

}  // namespace

// Small enough to stay in a core's cache between the two phases; on a GPU large enough that its
// ranks seldom meet.
std::size_t sum_chunk_bytes(Device device) {
  return device.stands_for() == DeviceType::cpu ? std::size_t{1} << 19 : std::size_t{4} << 20;
}

// Two ranks read less when each sums everything, and small sums are not worth a second meeting. A
// 16-bit output that accumulates has to be rounded once, from its own old value and the whole sum.
bool sums_for_itself(int ranks, std::uint64_t bytes, const Reduction& reduction) {
  return ranks <= 2 || bytes * static_cast<std::uint64_t>(ranks) <= direct_sum_bytes ||
         (reduction.accumulate && size_of(reduction.out_dtype) == 2);
}

std::size_t shared_all_reduce_scratch(Device device, int ranks, std::uint64_t bytes,
                                      const Reduction& reduction) {
  return sums_for_itself(ranks, bytes, reduction) ? 0 : 2 * sum_chunk_bytes(device);
}

std::size_t nccl_reduce_scatter_scratch(const std::vector<std::int64_t>& counts, int ranks,
                                        DType in_dtype, bool fixed_order) {
  std::size_t bytes = 0;
  for (const std::int64_t count : counts) bytes += aligned_bytes(count, in_dtype);
  if (fixed_order) bytes *= static_cast<std::size_t>(ranks);
  return std::max(bytes, nccl_scratch_alignment);
}

std::size_t nccl_all_reduce_scratch(std::int64_t count, int ranks, DType in_dtype,
                                    bool fixed_order) {
  if (!fixed_order) return static_cast<std::size_t>(count) * size_of(in_dtype);
  const std::int64_t length = std::min(nccl_piece_elements, count);
  const std::int64_t share = (length + ranks - 1) / ranks;
  const DType wide = in_dtype == float64 ? float64 : float32;
  return aligned_bytes(share, in_dtype) * static_cast<std::size_t>(ranks) +
         aligned_bytes(share * ranks, wide);
}

}  // namespace tessera::comm

// Sizes of intermediate results.
#include "comm/scratch.h"

#include <algorithm>

namespace tessera::comm {
namespace {

// When the contents of all ranks together are smaller than this, every rank sums for itself.
constexpr std::size_t direct_sum_bytes = std::size_t{64} << 10;

std::size_t round_up_bytes(std::size_t bytes) {
  return (bytes + nccl_scratch_alignment - 1) / nccl_scratch_alignment * nccl_scratch_alignment;
}

std::size_t aligned_bytes(std::int64_t count, DType dtype) {
  return round_up_bytes(static_cast<std::size_t>(count) * size_of(dtype));
}

std::size_t encoded_bytes(std::int64_t count, WireFormat wire) {
  return wire == WireFormat::same ? 0 : round_up_bytes(wire_bytes(wire, count));
}

std::size_t travelling_bytes(std::int64_t count, DType dtype, WireFormat wire) {
  return wire == WireFormat::same ? static_cast<std::size_t>(count) * size_of(dtype)
                                  : wire_bytes(wire, count);
}

std::size_t share_bytes(const GatheredRange& range, int ranks) {
  const std::size_t bytes = range.bytes / static_cast<std::size_t>(ranks);
  if (range.wire == WireFormat::same) return bytes;
  return wire_bytes(range.wire, static_cast<std::int64_t>(bytes / size_of(range.dtype)));
}

}  // namespace

// Small enough to stay in a core's cache between the two phases; on a GPU large enough that its
// ranks seldom meet.
std::size_t sum_chunk_bytes(Device device) {
  return device.stands_for() == DeviceType::cpu ? std::size_t{1} << 19 : std::size_t{4} << 20;
}

// Two ranks read less when each sums everything, and small sums do not justify a second meeting. A
// 16-bit output that accumulates must be rounded once, from its own old value and the whole sum.
bool sums_for_itself(int ranks, std::uint64_t bytes, const Reduction& reduction) {
  return ranks <= 2 || bytes * static_cast<std::uint64_t>(ranks) <= direct_sum_bytes ||
         (reduction.accumulate && size_of(reduction.out_dtype) == 2);
}

std::size_t shared_all_reduce_scratch(Device device, int ranks, std::uint64_t bytes,
                                      const Reduction& reduction) {
  return sums_for_itself(ranks, bytes, reduction) ? 0 : 2 * sum_chunk_bytes(device);
}

std::size_t nccl_reduce_scatter_scratch(const std::vector<std::int64_t>& counts, int ranks,
                                        DType in_dtype, bool fixed_order, WireFormat wire) {
  std::size_t bytes = 0, travelling = 0;
  for (const std::int64_t count : counts) {
    bytes += aligned_bytes(count, in_dtype);
    travelling += encoded_bytes(count, wire);
  }
  const auto all = static_cast<std::size_t>(ranks);
  if (!nccl_sums_for_itself(in_dtype, fixed_order, wire)) bytes *= all;
  return std::max(bytes, nccl_scratch_alignment) + 2 * (all - 1) * travelling;
}

std::int64_t nccl_share_of_piece(std::int64_t length, int ranks, WireFormat wire) {
  const std::int64_t share = (length + ranks - 1) / ranks;
  if (wire == WireFormat::same) return share;
  return (share + wire_block - 1) / wire_block * wire_block;
}

std::size_t nccl_all_reduce_scratch(std::int64_t count, int ranks, DType in_dtype, bool fixed_order,
                                    WireFormat wire) {
  if (nccl_sums_for_itself(in_dtype, fixed_order, wire)) {
    return static_cast<std::size_t>(count) * size_of(in_dtype);
  }
  const std::int64_t length = std::min(nccl_piece_elements, count);
  const std::int64_t share = nccl_share_of_piece(length, ranks, wire);
  const DType wide = in_dtype == float64 ? float64 : float32;
  const auto all = static_cast<std::size_t>(ranks);
  return aligned_bytes(share, in_dtype) * all + aligned_bytes(share * ranks, wide) +
         2 * (all - 1) * encoded_bytes(share, wire);
}

std::size_t nccl_all_gather_scratch(const std::vector<GatheredRange>& ranges, int ranks) {
  std::size_t bytes = 0;
  for (const GatheredRange& range : ranges) {
    if (range.wire != WireFormat::same)
      bytes += round_up_bytes(static_cast<std::size_t>(ranks) * share_bytes(range, ranks));
  }
  return bytes;
}

std::uint64_t gathered_bytes(const std::vector<GatheredRange>& ranges, int ranks) {
  std::uint64_t bytes = 0;
  for (const GatheredRange& range : ranges) bytes += share_bytes(range, ranks);
  return bytes * static_cast<std::uint64_t>(ranks - 1);
}

std::uint64_t scattered_bytes(const std::vector<std::int64_t>& counts, int ranks, DType in_dtype,
                              WireFormat wire) {
  std::uint64_t bytes = 0;
  for (const std::int64_t count : counts) bytes += travelling_bytes(count, in_dtype, wire);
  return bytes * static_cast<std::uint64_t>(ranks - 1);
}

std::uint64_t all_reduced_bytes(std::int64_t count, int ranks, DType in_dtype, WireFormat wire) {
  const auto all = static_cast<std::uint64_t>(ranks);
  const std::uint64_t back =
      travelling_bytes(count, in_dtype == float64 ? float64 : float32, WireFormat::same);
  return (travelling_bytes(count, in_dtype, wire) + back) * (all - 1) / all;
}

}  // namespace tessera::comm

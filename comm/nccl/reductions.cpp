// Reductions over NCCL. Data of 32 bits or more: NCCL's own collectives, in its order. Else:
// transfers and our kernel, in fp32 and in the order that all other communicators use.
#include <algorithm>

#include "base/error.h"
#include "comm/nccl/communicator.h"
#include "comm/scratch.h"
#include "engine/device/launch.h"

namespace tessera::comm {
namespace {

constexpr std::size_t alignment = nccl_scratch_alignment;

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

std::size_t bytes_of(std::int64_t count, DType dtype) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}

DType sum_dtype(DType in) {
  return in == float64 ? float64 : float32;
}

}  // namespace

std::byte* NcclCommunicator::scratch(std::size_t bytes) {
  if (scratch_.bytes() < bytes) {
    current_queue(device()).synchronize();  // the old memory may still be in use
    scratch_ = {};
    scratch_ = NcclMemory(device(), bytes, "the scratch of reductions", job_->held_memory());
  }
  return scratch_.data();
}

void NcclCommunicator::reserve_scratch(std::size_t bytes) {
  Call call(Op::allocate, {.phase = Phase::setup});
  call.set_name("the scratch of reductions");
  agree_on_memory(call, [&] { (void)scratch(bytes); });
}

const NcclCommunicator::RangesOfRanks& NcclCommunicator::ranges_of_ranks(const Ranges& mine,
                                                                         const Call& call) {
  const auto key = std::pair((static_cast<std::uint64_t>(call.unit) << 32) ^ call.bytes, mine);
  const auto known = known_ranges_.find(key);
  if (known != known_ranges_.end()) return known->second;
  control::Writer writer;
  writer.number<std::uint64_t>(mine.size());
  for (const Range& range : mine) writer.number(range);
  RangesOfRanks all;
  for (const std::string& text : group_.exchange(call, writer.bytes())) {
    control::Reader reader(text);
    Ranges& its = all.emplace_back();
    const auto count = reader.number<std::uint64_t>();
    for (std::uint64_t i = 0; i < count; ++i) its.push_back(reader.number<Range>());
  }
  return known_ranges_.emplace(key, std::move(all)).first->second;
}

void NcclCommunicator::sum(const std::vector<const void*>& sources, int group, void* out,
                           std::int64_t count, DType in_dtype, const Reduction& reduction) {
  const int ranks = static_cast<int>(sources.size());
  if (ranks == 1 && size_of(reduction.out_dtype) < size_of(in_dtype)) {  // a complete sum
    TESSERA_LAUNCH(device(), cast,
                   {.in = sources.front(),
                    .out = out,
                    .n = count,
                    .in_dtype = in_dtype,
                    .out_dtype = reduction.out_dtype,
                    .scale = reduction.scale,
                    .accumulate = reduction.accumulate});
    return;
  }
  TESSERA_LAUNCH(device(), reduce_ranks,
                 {.in = sources.data(),
                  .ranks = ranks,
                  .group = group == 0 ? ranks : std::min(group, ranks),
                  .out = out,
                  .n = count,
                  .in_dtype = in_dtype,
                  .out_dtype = reduction.out_dtype,
                  .scale = reduction.scale,
                  .accumulate = reduction.accumulate});
}

void NcclCommunicator::do_reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                                         const Reduction& reduction, Tag tag) {
  NcclBuffer& mine = own(buffer, Op::reduce_scatter);
  const Call call = with_reduction(call_of(Op::reduce_scatter, mine, tag), reduction);
  Ranges own_ranges;
  for (const ReducedRange& range : ranges) own_ranges.push_back({range.first, range.count});
  mine.publish();
  const RangesOfRanks& all = ranges_of_ranks(own_ranges, call);
  collective(call, [&] {
    if (nccl_sums_for_itself(reduction.in_dtype, fixed_order_, reduction.wire)) {
      reduce_in_order_of_nccl(mine, ranges, all, reduction);
    } else {
      reduce_in_fixed_order(mine, ranges, all, reduction);
    }
  });
  mine.release();
}

// True when the ranges of all ranks follow those of the first rank, with equal lengths and in rank
// order: a reduce-scatter in NCCL's sense. The ranges of all units are so; those of other callers
// need not be.
bool NcclCommunicator::is_regular(const RangesOfRanks& all) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].size() != all[0].size()) return false;
    for (std::size_t i = 0; i < all[r].size(); ++i) {
      const Range& first = all[0][i];
      const std::int64_t expected = first.first + static_cast<std::int64_t>(r) * first.count;
      if (all[r][i] != Range{expected, first.count}) return false;
    }
  }
  return true;
}

void NcclCommunicator::reduce_in_order_of_nccl(const NcclBuffer& buffer,
                                               const std::vector<ReducedRange>& ranges,
                                               const RangesOfRanks& all,
                                               const Reduction& reduction) {
  DeviceQueue& queue = current_queue(device());
  const auto at = [&](std::int64_t first) {
    return buffer.data() + bytes_of(first, reduction.in_dtype);
  };
  std::size_t bytes = 0;
  for (const ReducedRange& range : ranges)
    bytes += aligned(bytes_of(range.count, reduction.in_dtype));
  std::byte* sums = scratch(std::max<std::size_t>(bytes, alignment));

  if (is_regular(all)) {
    std::vector<NcclChannel::Scattered> parts;
    std::byte* to = sums;
    for (const Range& range : all[0]) {
      parts.push_back({at(range.first), to, range.count});
      to += aligned(bytes_of(range.count, reduction.in_dtype));
    }
    channel_->reduce_scatter(parts, reduction.in_dtype, queue);
  } else {
    std::vector<NcclChannel::Sum> parts;
    for (std::size_t r = 0; r < all.size(); ++r) {
      std::byte* to = sums;
      for (const Range& range : all[r]) {
        const bool here = static_cast<int>(r) == rank();
        parts.push_back({static_cast<int>(r), at(range.first), here ? to : nullptr, range.count});
        if (here) to += aligned(bytes_of(range.count, reduction.in_dtype));
      }
    }
    channel_->reduce_each(parts, reduction.in_dtype, queue);
  }
  const std::byte* from = sums;
  for (const ReducedRange& range : ranges) {
    if (range.count > 0) sum({from}, 1, range.out, range.count, reduction.in_dtype, reduction);
    from += aligned(bytes_of(range.count, reduction.in_dtype));
  }
}

void NcclCommunicator::reduce_in_fixed_order(const NcclBuffer& buffer,
                                             const std::vector<ReducedRange>& ranges,
                                             const RangesOfRanks& all, const Reduction& reduction) {
  const std::size_t element_bytes = size_of(reduction.in_dtype);
  const auto at = [&](std::int64_t first) {
    return buffer.data() + static_cast<std::size_t>(first) * element_bytes;
  };
  std::size_t of_a_rank = 0;
  for (const ReducedRange& range : ranges) {
    of_a_rank += aligned(bytes_of(range.count, reduction.in_dtype));
  }
  // Places are relative to the scratch's beginning, which is known only when its size is.
  std::vector<Move> moves;
  std::vector<std::size_t> places;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (static_cast<int>(r) == rank()) continue;
    for (const Range& range : all[r]) {
      moves.push_back({static_cast<int>(r), at(range.first), nullptr, range.count});
      places.push_back(0);
    }
    std::size_t to = r * of_a_rank;
    for (const ReducedRange& range : ranges) {
      moves.push_back({static_cast<int>(r), nullptr, nullptr, range.count});
      places.push_back(to);
      to += aligned(bytes_of(range.count, reduction.in_dtype));
    }
  }
  const std::size_t received_bytes = std::max(of_a_rank * all.size(), alignment);
  std::byte* received = scratch(received_bytes + move_scratch(moves, reduction.wire));
  for (std::size_t i = 0; i < moves.size(); ++i) {
    if (moves[i].send == nullptr) moves[i].receive = received + places[i];
  }
  move(moves, reduction.in_dtype, reduction.wire, received + received_bytes);
  std::size_t offset = 0;
  for (const ReducedRange& range : ranges) {
    std::vector<const void*> sources;
    for (std::size_t r = 0; r < all.size(); ++r) {
      sources.push_back(static_cast<int>(r) == rank() ? at(range.first)
                                                      : received + r * of_a_rank + offset);
    }
    if (range.count > 0) {
      sum(sources, reduction.group, range.out, range.count, reduction.in_dtype, reduction);
    }
    offset += aligned(bytes_of(range.count, reduction.in_dtype));
  }
}

void NcclCommunicator::do_all_reduce(Buffer& buffer, std::int64_t count, void* out,
                                     const Reduction& reduction, Tag tag) {
  NcclBuffer& mine = own(buffer, Op::all_reduce);
  Call call = with_reduction(call_of(Op::all_reduce, mine, tag), reduction);
  call.bytes = bytes_of(count, reduction.in_dtype);
  mine.publish();
  collective(call, [&] {
    if (!nccl_sums_for_itself(reduction.in_dtype, fixed_order_, reduction.wire)) {
      all_reduce_in_fixed_order(mine, count, out, reduction);
    } else if (count > 0) {
      std::byte* sums = scratch(bytes_of(count, reduction.in_dtype));
      channel_->all_reduce(mine.data(), sums, count, reduction.in_dtype, current_queue(device()));
      sum({sums}, 1, out, count, reduction.in_dtype, reduction);
    }
  });
  mine.release();
}

// Each rank sums its part of a piece; the parts' unscaled sums are gathered, and every rank scales
// and adds them in the same kernel as reduce_scatter, hence with the same bits.
void NcclCommunicator::all_reduce_in_fixed_order(const NcclBuffer& buffer, std::int64_t count,
                                                 void* out, const Reduction& reduction) {
  DeviceQueue& queue = current_queue(device());
  const auto ranks = static_cast<std::size_t>(size());
  const DType wide = sum_dtype(reduction.in_dtype);
  Reduction partial = reduction;
  partial.out_dtype = wide;
  partial.scale = 1.0f;
  partial.accumulate = false;
  for (std::int64_t begin = 0; begin < count; begin += nccl_piece_elements) {
    const std::int64_t length = std::min(nccl_piece_elements, count - begin);
    const std::int64_t share = nccl_share_of_piece(length, size(), reduction.wire);
    const auto part_of = [&](std::size_t r) {
      const std::int64_t first = std::min(static_cast<std::int64_t>(r) * share, length);
      return Range{begin + first, std::min(share, length - first)};
    };
    const std::size_t share_bytes = aligned(bytes_of(share, reduction.in_dtype));
    const std::size_t sum_bytes = bytes_of(share, wide);
    const std::size_t plain_bytes = share_bytes * ranks + aligned(sum_bytes * ranks);
    const std::size_t moved = reduction.wire == WireFormat::same
                                  ? 0
                                  : 2 * (ranks - 1) * aligned(wire_bytes(reduction.wire, share));
    std::byte* received = scratch(plain_bytes + moved);
    std::byte* sums = received + share_bytes * ranks;
    const auto at = [&](std::int64_t first) {
      return buffer.data() + static_cast<std::size_t>(first) * size_of(reduction.in_dtype);
    };
    const auto here = static_cast<std::size_t>(rank());
    const Range own_part = part_of(here);
    std::vector<Move> moves;
    std::vector<const void*> sources;
    for (std::size_t r = 0; r < ranks; ++r) {
      sources.push_back(r == here ? at(own_part.first) : received + r * share_bytes);
      if (r == here) continue;
      const Range its = part_of(r);
      moves.push_back({static_cast<int>(r), at(its.first), nullptr, its.count});
      moves.push_back({static_cast<int>(r), nullptr, received + r * share_bytes, own_part.count});
    }
    move(moves, reduction.in_dtype, reduction.wire, received + plain_bytes);
    if (own_part.count > 0) {
      sum(sources, reduction.group, sums + here * sum_bytes, own_part.count, reduction.in_dtype,
          partial);
    }
    channel_->all_gather({{sums, sum_bytes}}, queue);
    std::byte* target = static_cast<std::byte*>(out) + bytes_of(begin, reduction.out_dtype);
    sum({sums}, 1, target, length, wide, reduction);
  }
}

}  // namespace tessera::comm

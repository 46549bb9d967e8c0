// Collectives over memory that all ranks see.
#include "comm/shared/communicator.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/outcome.h"
#include "comm/scratch.h"
#include "engine/device/launch.h"
#include "engine/device/queue.h"

namespace tessera::comm {
namespace {

std::byte* element(void* memory, std::int64_t index, DType dtype) {
  return static_cast<std::byte*>(memory) + index * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

SharedBuffer& SharedCommunicator::own(Buffer& buffer, Op op) const {
  auto* shared = dynamic_cast<SharedBuffer*>(&buffer);
  TESSERA_REQUIRE(shared != nullptr && &shared->group() == group_.get(),
                  "{} on '{}': the buffer comes from another communicator", name_of(op),
                  group_->name());
  return *shared;
}

std::shared_ptr<Buffer> SharedCommunicator::allocate(std::string_view name, std::size_t bytes,
                                                     Sharing sharing) {
  return SharedBuffer::allocate(group_, name, bytes, sharing, ++buffers_);
}

void SharedCommunicator::acquire(Buffer& buffer, Tag tag) {
  own(buffer, Op::acquire).acquire(tag);
}

void SharedCommunicator::do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges,
                                       Tag tag) {
  SharedBuffer& shared = own(buffer, Op::all_gather);
  Call call = shared.call(Op::all_gather, tag);
  call.bytes = total_bytes(ranges);
  shared.publish(Op::all_gather);
  group_->meet_with_queues(call);
}

void SharedCommunicator::reduce(const SharedBuffer& buffer, std::int64_t first, std::int64_t count,
                                void* out, const Reduction& reduction) {
  sources_.resize(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) {
    sources_[static_cast<std::size_t>(rank)] =
        element(buffer.region(rank), first, reduction.in_dtype);
  }
  const int group = reduction.group == 0 ? size() : std::min(reduction.group, size());
  TESSERA_LAUNCH(device(), reduce_ranks,
                 {.in = sources_.data(),
                  .ranks = size(),
                  .group = group,
                  .out = out,
                  .n = count,
                  .in_dtype = reduction.in_dtype,
                  .out_dtype = reduction.out_dtype,
                  .scale = reduction.scale,
                  .accumulate = reduction.accumulate});
}

void SharedCommunicator::do_reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                                           const Reduction& reduction, Tag tag) {
  SharedBuffer& shared = own(buffer, Op::reduce_scatter);
  shared.publish(Op::reduce_scatter);
  group_->meet_with_queues(with_reduction(shared.call(Op::reduce_scatter, tag), reduction));
  for (const ReducedRange& range : ranges) {
    if (range.count > 0) reduce(shared, range.first, range.count, range.out, reduction);
  }
  shared.release();
}

void SharedCommunicator::do_all_reduce(Buffer& buffer, std::int64_t count, void* out,
                                       const Reduction& reduction, Tag tag) {
  SharedBuffer& shared = own(buffer, Op::all_reduce);
  Call call = with_reduction(shared.call(Op::all_reduce, tag), reduction);
  call.bytes = static_cast<std::uint64_t>(count) * size_of(reduction.in_dtype);
  const bool direct = sums_for_itself(size(), call.bytes, reduction);
  if (!direct) reserve_scratch(2 * sum_chunk_bytes(device()));
  shared.publish(Op::all_reduce);
  group_->meet_with_queues(call);
  if (!direct) {
    all_reduce_in_chunks(shared, count, out, reduction, call);
  } else if (count > 0) {
    reduce(shared, 0, count, out, reduction);
  }
  shared.release();
}

void SharedCommunicator::do_all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag) {
  SharedBuffer& shared = own(buffer, Op::all_to_all);
  Call call = shared.call(Op::all_to_all, tag);
  call.bytes = bytes;
  shared.publish(Op::all_to_all);
  group_->meet_with_queues(call);
  DeviceQueue& queue = current_queue(device());
  for (int from = 0; from < size() && bytes > 0; ++from) {
    queue.copy(static_cast<std::byte*>(out) + static_cast<std::size_t>(from) * bytes,
               shared.region(from) + static_cast<std::size_t>(rank()) * bytes, bytes);
  }
  shared.release();
}

void SharedCommunicator::reserve_scratch(std::size_t bytes) {
  if (bytes == 0 || sums_ != nullptr) return;
  sums_ =
      SharedBuffer::allocate(group_, "sums of all_reduce", bytes, Sharing::one_copy, ++buffers_);
}

// Each rank sums its part of a chunk into shared memory, and then copies the others' parts from
// there.
void SharedCommunicator::all_reduce_in_chunks(SharedBuffer& buffer, std::int64_t count, void* out,
                                              const Reduction& reduction, Call call) {
  // When out accumulates, the shared part is the sum before scaling, so that scaling and adding
  // happen in the same kernel as in reduce_scatter, hence with the same bits.
  Reduction shared_part = reduction;
  if (reduction.accumulate) {
    shared_part.accumulate = false;
    shared_part.scale = 1.0f;
    shared_part.out_dtype = reduction.in_dtype == float64 ? float64 : float32;
  }
  const std::size_t element_bytes = size_of(shared_part.out_dtype);
  const std::size_t half = sum_chunk_bytes(device());
  const auto chunk = static_cast<std::int64_t>(half / element_bytes);
  for (std::int64_t begin = 0; begin < count; begin += chunk) {
    const std::int64_t length = std::min(chunk, count - begin);
    // The halves are used alternately: a rank is at most one round ahead of the slowest reader.
    std::byte* sums = sums_->data() + (call.part & 1) * half;
    const std::int64_t first = length * rank() / size();
    const std::int64_t last = length * (rank() + 1) / size();
    if (last > first) {
      reduce(buffer, begin + first, last - first, element(sums, first, shared_part.out_dtype),
             shared_part);
    }
    ++call.part;
    group_->meet_with_queues(call);
    std::byte* target = element(out, begin, reduction.out_dtype);
    if (!reduction.accumulate) {
      current_queue(device()).copy(target, sums, static_cast<std::size_t>(length) * element_bytes);
      continue;
    }
    const std::array<const void*, 1> source{sums};
    TESSERA_LAUNCH(device(), reduce_ranks,
                   {.in = source.data(),
                    .ranks = 1,
                    .group = 1,
                    .out = target,
                    .n = length,
                    .in_dtype = shared_part.out_dtype,
                    .out_dtype = reduction.out_dtype,
                    .scale = reduction.scale,
                    .accumulate = true});
  }
}

std::shared_ptr<Communicator> SharedCommunicator::make_group(const std::vector<int>& members,
                                                             std::string_view name,
                                                             const Call& call) {
  const std::shared_ptr<Arena>& arena = group_->job()->arena();
  std::string outcome = encode_success(0);
  if (members.front() == rank()) {
    try {
      outcome = encode_success(Group::reserve_block(*arena, static_cast<int>(members.size())));
    } catch (const Error& error) {
      outcome = encode_error(error);
    }
  }
  const std::vector<std::string> outcomes = group_->exchange(call, outcome);
  for (const std::string& text : outcomes)
    decode_result(text);  // either all groups are made, or none
  const std::uint64_t where = decode_result(outcomes[static_cast<std::size_t>(members.front())]);
  std::vector<int> job_ranks;
  for (const int member : members) {
    job_ranks.push_back(group_->members()[static_cast<std::size_t>(member)]);
  }
  return make_shared_at_home<SharedCommunicator>(
      std::make_shared<Group>(group_->job(), where, std::move(job_ranks), std::string(name)));
}

std::shared_ptr<Communicator> SharedCommunicator::split(int color, int key, std::string_view name) {
  Call call(Op::split, {.phase = Phase::setup});
  const std::vector<std::string> answers = group_->exchange(call, fmt::format("{} {}", color, key));
  std::vector<std::tuple<int, int>> ordered;  // (key, rank) of this rank's colour
  for (int rank = 0; rank < size(); ++rank) {
    const std::string& answer = answers[static_cast<std::size_t>(rank)];
    int its_color = 0, its_key = 0;
    const char* end = answer.data() + answer.size();
    const char* space = std::from_chars(answer.data(), end, its_color).ptr;
    std::from_chars(space + 1, end, its_key);
    if (its_color == color) ordered.emplace_back(its_key, rank);
  }
  std::sort(ordered.begin(), ordered.end());
  std::vector<int> members;
  for (const auto& [its_key, rank] : ordered) members.push_back(rank);
  return make_group(members, name, call);
}

std::shared_ptr<Communicator> SharedCommunicator::duplicate(std::string_view name) {
  Call call(Op::duplicate, {.phase = Phase::setup});
  call.set_name(name);
  std::vector<int> members(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) members[static_cast<std::size_t>(rank)] = rank;
  return make_group(members, name, call);
}

}  // namespace tessera::comm

// Collectives that are counted.
#include "sharding/comm/record/communicator.h"

#include "kernels/base/error.h"
#include "sharding/comm/arguments.h"
#include "sharding/comm/record/buffer.h"
#include "sharding/comm/scratch.h"

namespace tessera::comm {
namespace {

RecordBuffer& recorded(Buffer& buffer, Op op) {
  auto* mine = dynamic_cast<RecordBuffer*>(&buffer);
  TESSERA_REQUIRE(mine != nullptr, "{} of '{}': the buffer comes from another communicator",
                  name_of(op), buffer.name());
  return *mine;
}

}  // namespace

std::shared_ptr<Buffer> RecordCommunicator::allocate(std::string_view name, std::size_t bytes,
                                                     Sharing sharing) {
  const int sharers = world_.one_memory ? world_.size : 1;
  return std::make_shared<RecordBuffer>(
      world_.device, name, bytes, sharing,
      HeldBlock(recorder_->held_memory(), share_of_buffer(bytes, sharing, sharers)));
}

void RecordCommunicator::acquire(Buffer& buffer, Tag /*tag*/) {
  recorded(buffer, Op::acquire).acquire();
}

void RecordCommunicator::all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges,
                                    Tag tag) {
  RecordBuffer& mine = recorded(buffer, Op::all_gather);
  const std::size_t bytes = check_all_gather(mine, ranges, size());
  mine.publish();
  count(Op::all_gather, tag, bytes - bytes / static_cast<std::size_t>(size()));
}

void RecordCommunicator::reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                                        Reduction reduction, Tag tag) {
  RecordBuffer& mine = recorded(buffer, Op::reduce_scatter);
  check_reduce_scatter(mine, ranges, reduction);
  mine.publish();
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> counts;
  for (const ReducedRange& range : ranges) {
    counts.push_back(range.count);
    bytes += static_cast<std::uint64_t>(range.count) * size_of(reduction.in_dtype);
  }
  if (!world_.one_memory) {
    reserve_scratch(
        nccl_reduce_scatter_scratch(counts, size(), reduction.in_dtype, world_.fixed_order));
  }
  mine.release();
  count(Op::reduce_scatter, tag, bytes * static_cast<std::uint64_t>(size() - 1));
}

// Data moves twice: to where it is summed, and the sums from there.
void RecordCommunicator::all_reduce(Buffer& buffer, std::int64_t elements, void* out,
                                    Reduction reduction, Tag tag) {
  RecordBuffer& mine = recorded(buffer, Op::all_reduce);
  check_all_reduce(mine, elements, out, reduction);
  mine.publish();
  const std::uint64_t bytes = static_cast<std::uint64_t>(elements) * size_of(reduction.in_dtype);
  reserve_scratch(
      world_.one_memory
          ? shared_all_reduce_scratch(world_.device, size(), bytes, reduction)
          : nccl_all_reduce_scratch(elements, size(), reduction.in_dtype, world_.fixed_order));
  mine.release();
  const auto ranks = static_cast<std::uint64_t>(size());
  count(Op::all_reduce, tag, 2 * bytes * (ranks - 1) / ranks);
}

std::vector<std::string> RecordCommunicator::exchange(std::string_view message, Tag tag) {
  count(Op::exchange, tag, message.size() * static_cast<std::size_t>(size() - 1));
  return std::vector<std::string>(static_cast<std::size_t>(size()), std::string(message));
}

std::string RecordCommunicator::broadcast(std::string_view message, int root, Tag tag) {
  check_broadcast("record", root, size());
  count(Op::broadcast, tag, rank() == root ? 0 : message.size());
  return std::string(message);
}

void RecordCommunicator::barrier(Tag tag) {
  count(Op::barrier, tag, 0);
}

std::shared_ptr<Communicator> RecordCommunicator::split(int /*color*/, int /*key*/,
                                                        std::string_view name) {
  TESSERA_REQUIRE(size() == 1,
                  "split into '{}': a plan runs one rank and cannot know the others' colours; use "
                  "split_blocks or split_across_blocks",
                  name);
  return part(0, 1);
}

std::shared_ptr<Communicator> RecordCommunicator::split_blocks(int ranks, std::string_view name) {
  TESSERA_REQUIRE(ranks > 0 && size() % ranks == 0, "split into '{}': {} ranks in blocks of {}",
                  name, size(), ranks);
  return part(rank() % ranks, ranks);
}

std::shared_ptr<Communicator> RecordCommunicator::split_across_blocks(int ranks,
                                                                      std::string_view name) {
  TESSERA_REQUIRE(ranks > 0 && size() % ranks == 0, "split into '{}': {} ranks in blocks of {}",
                  name, size(), ranks);
  return part(rank() / ranks, size() / ranks);
}

std::shared_ptr<Communicator> RecordCommunicator::duplicate(std::string_view /*name*/) {
  return part(rank(), size());
}

// Among one rank nothing moves: what real communicators do there is no communication.
void RecordCommunicator::count(Op op, Tag tag, std::uint64_t bytes) {
  if (size() == 1) return;
  recorder_->count({tag.phase, op, tag.unit, size()}, bytes);
}

// It grows to the largest that was needed; in one memory it is a buffer that the ranks share.
void RecordCommunicator::reserve_scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return;
  scratch_ = {};
  scratch_ = HeldBlock(recorder_->held_memory(),
                       share_of_buffer(bytes, Sharing::one_copy, world_.one_memory ? size() : 1));
  scratch_bytes_ = bytes;
}

std::shared_ptr<Communicator> RecordCommunicator::part(int rank, int size) const {
  RecordedWorld world = world_;
  world.rank = rank;
  world.size = size;
  return connect_record(world, recorder_);
}

std::shared_ptr<Communicator> connect_record(const RecordedWorld& world,
                                             std::shared_ptr<Recorder> recorder) {
  return std::make_shared<RecordCommunicator>(world, std::move(recorder));
}

}  // namespace tessera::comm

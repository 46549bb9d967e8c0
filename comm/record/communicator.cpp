// Collectives that are only counted.
#include "comm/record/communicator.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "comm/nodes/travelling.h"
#include "comm/record/buffer.h"
#include "comm/scratch.h"
#include "engine/planned/backend.h"
#include "engine/planned/work_log.h"

namespace tessera::comm {

void Recorder::note(const RecordedCollective& collective, Device device) {
  WorkLog* const log = work_log();
  if (log == nullptr) return;
  LoggedWork work;
  work.kind = LoggedWork::Kind::outside;
  work.outside = collectives_.size();
  // Small messages go between the CPUs, from the rank's own thread.
  const bool message = collective.op == Op::exchange || collective.op == Op::broadcast ||
                       collective.op == Op::barrier;
  work.lane = message ? WorkLog::host : planned_lane(device);
  collectives_.push_back(collective);
  log->add(work);
}

namespace {

RecordBuffer& recorded(Buffer& buffer, Op op) {
  auto* mine = dynamic_cast<RecordBuffer*>(&buffer);
  TESSERA_REQUIRE(mine != nullptr, "{} of '{}': the buffer comes from another communicator",
                  name_of(op), buffer.name());
  return *mine;
}

}  // namespace

std::vector<std::string> RecordGroup::exchange(const Call& call, std::string_view message) {
  const Tag tag{call.step, call.unit, call.phase};
  const bool from_root = call.root >= 0;
  const std::size_t received = !from_root ? message.size() * static_cast<std::size_t>(size() - 1)
                               : rank() == call.root ? 0
                                                     : message.size();
  count(call.op, tag, received);
  log_call(call.op, tag, static_cast<double>(message.size()) * (from_root ? 1 : size()));
  return std::vector<std::string>(static_cast<std::size_t>(size()), std::string(message));
}

// With one rank nothing moves: the local work of real communicators is not communication.
void RecordGroup::count(Op op, Tag tag, std::uint64_t received) {
  if (size() == 1) return;
  recorder_->count({tag.phase, op, tag.unit, size()}, received);
}

void RecordGroup::log_call(Op op, Tag tag, double bytes, Reduction reduction) {
  if (size() == 1) return;
  recorder_->note({.phase = tag.phase,
                   .op = op,
                   .unit = tag.unit,
                   .ranks = size(),
                   .stride = world_.stride,
                   .bytes = bytes,
                   .dtype = reduction.in_dtype,
                   .sum_dtype = reduction.out_dtype,
                   .one_memory = world_.one_memory},
                  world_.device);
}

void RecordGroup::log_message(int peer, Tag tag, double bytes) {
  recorder_->note({.phase = tag.phase,
                   .op = Op::send,
                   .unit = tag.unit,
                   .ranks = 2,
                   .stride = world_.stride * std::abs(peer - rank()),
                   .bytes = bytes,
                   .one_memory = world_.one_memory},
                  world_.device);
}

std::shared_ptr<Buffer> RecordCommunicator::allocate(std::string_view name, std::size_t bytes,
                                                     Sharing sharing) {
  const int sharers = over_nodes() ? ranks_here() : world_.one_memory ? world_.size : 1;
  return std::make_shared<RecordBuffer>(
      world_.device, name, bytes, sharing,
      HeldBlock(recorder_->held_memory(), share_of_buffer(bytes, sharing, sharers)));
}

void RecordCommunicator::acquire(Buffer& buffer, Tag /*tag*/) {
  recorded(buffer, Op::acquire).acquire();
}

void RecordCommunicator::do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges,
                                       Tag tag) {
  RecordBuffer& mine = recorded(buffer, Op::all_gather);
  const std::size_t bytes = total_bytes(ranges);
  mine.publish();
  if (over_nodes()) {
    hold_scratch(nodes_gather_scratch(topology(), ranges), 1);
  } else if (!world_.one_memory) {
    reserve_scratch(nccl_all_gather_scratch(ranges, size()));
  }
  group_.count(Op::all_gather, tag, gathered_bytes(ranges, size()));
  group_.log_call(Op::all_gather, tag, static_cast<double>(bytes));
}

void RecordCommunicator::do_reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                                           const Reduction& reduction, Tag tag) {
  RecordBuffer& mine = recorded(buffer, Op::reduce_scatter);
  mine.publish();
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> counts;
  for (const ReducedRange& range : ranges) {
    counts.push_back(range.count);
    bytes += static_cast<std::uint64_t>(range.count) * size_of(reduction.in_dtype);
  }
  if (over_nodes()) {
    hold_scratch_of_nodes(reduction);
  } else if (!world_.one_memory) {
    reserve_scratch(nccl_reduce_scatter_scratch(counts, size(), reduction.in_dtype,
                                                world_.fixed_order, reduction.wire));
  }
  mine.release();
  group_.count(Op::reduce_scatter, tag,
               scattered_bytes(counts, size(), reduction.in_dtype, reduction.wire));
  group_.log_call(Op::reduce_scatter, tag, static_cast<double>(bytes) * size(), reduction);
}

// Data moves twice: to the rank that sums it, and the sums from there.
void RecordCommunicator::do_all_reduce(Buffer& buffer, std::int64_t elements, void* /*out*/,
                                       const Reduction& reduction, Tag tag) {
  RecordBuffer& mine = recorded(buffer, Op::all_reduce);
  mine.publish();
  const std::uint64_t bytes = static_cast<std::uint64_t>(elements) * size_of(reduction.in_dtype);
  if (over_nodes()) hold_scratch_of_nodes(reduction);
  reserve_scratch(over_nodes() ? nodes_sums_bytes
                  : world_.one_memory
                      ? shared_all_reduce_scratch(world_.device, size(), bytes, reduction)
                      : nccl_all_reduce_scratch(elements, size(), reduction.in_dtype,
                                                world_.fixed_order, reduction.wire));
  mine.release();
  group_.count(Op::all_reduce, tag,
               all_reduced_bytes(elements, size(), reduction.in_dtype, reduction.wire));
  group_.log_call(Op::all_reduce, tag, static_cast<double>(bytes), reduction);
}

void RecordCommunicator::do_all_to_all(Buffer& buffer, std::size_t bytes, void* /*out*/, Tag tag) {
  RecordBuffer& mine = recorded(buffer, Op::all_to_all);
  mine.publish();
  mine.release();
  group_.count(Op::all_to_all, tag, bytes * static_cast<std::size_t>(size() - 1));
  group_.log_call(Op::all_to_all, tag, static_cast<double>(bytes) * size());
}

void RecordCommunicator::do_send(const void* /*memory*/, std::size_t bytes, int to, Tag tag) {
  group_.count(Op::send, tag, 0);
  group_.log_message(to, tag, static_cast<double>(bytes));
}

void RecordCommunicator::do_receive(void* /*memory*/, std::size_t bytes, int from, Tag tag) {
  group_.count(Op::send, tag, bytes);
  group_.log_message(from, tag, static_cast<double>(bytes));
}

// Messages from the root to each of the others. Op::broadcast is that of small messages.
void RecordCommunicator::do_broadcast(void* /*memory*/, std::size_t bytes, int root, Tag tag) {
  group_.count(Op::send, tag, rank() == root ? 0 : bytes);
  group_.log_call(Op::send, tag, static_cast<double>(bytes));
}

std::shared_ptr<Communicator> RecordCommunicator::split(int /*color*/, int /*key*/,
                                                        std::string_view name) {
  TESSERA_REQUIRE(size() == 1,
                  "split into '{}': a plan runs one rank and cannot know the others' colours; use "
                  "split_blocks or split_across_blocks",
                  name);
  return duplicate(name);
}

std::shared_ptr<Communicator> RecordCommunicator::do_split_evenly(int /*color*/, Part part,
                                                                  std::string_view /*name*/) {
  RecordedWorld world = world_;
  world.rank = part.rank;
  world.size = part.size;
  world.stride = world_.stride * part.stride;
  return connect_record(world, recorder_);
}

std::shared_ptr<Communicator> RecordCommunicator::duplicate(std::string_view /*name*/) {
  return connect_record(world_, recorder_);
}

bool RecordCommunicator::over_nodes() const {
  return world_.ranks_per_host > 0 && world_.size > 1 &&
         (world_.size - 1) * world_.stride >= world_.ranks_per_host;
}

// The planned rank is the first of its node.
int RecordCommunicator::ranks_here() const {
  return std::max(1, world_.ranks_per_host / world_.stride);
}

Topology RecordCommunicator::topology() const {
  std::vector<int> nodes;
  for (int rank = 0; rank < size(); ++rank) {
    nodes.push_back(rank * world_.stride / world_.ranks_per_host);
  }
  return Topology(nodes, rank());
}

void RecordCommunicator::hold_scratch_of_nodes(const Reduction& reduction) {
  const Topology nodes = topology();
  const SumOverNodes plan =
      sum_over_nodes(nodes, reduction.group, {reduction.in_dtype, reduction.wire});
  hold_scratch(reduction_scratch(nodes, plan).bytes(), 1);
}

// Grows to the largest size that was needed.
void RecordCommunicator::hold_scratch(std::size_t bytes, int sharers) {
  if (bytes <= scratch_bytes_) return;
  scratch_ = {};
  scratch_ =
      HeldBlock(recorder_->held_memory(), share_of_buffer(bytes, Sharing::one_copy, sharers));
  scratch_bytes_ = bytes;
}

// In one memory the scratch is a buffer that the ranks share.
void RecordCommunicator::reserve_scratch(std::size_t bytes) {
  if (!over_nodes()) return hold_scratch(bytes, world_.one_memory ? size() : 1);
  if (bytes == 0 || has_sums_) return;
  has_sums_ = true;
  sums_ = HeldBlock(recorder_->held_memory(),
                    share_of_buffer(nodes_sums_bytes, Sharing::one_copy, ranks_here()));
}

std::shared_ptr<Communicator> connect_record(const RecordedWorld& world,
                                             std::shared_ptr<Recorder> recorder) {
  return std::make_shared<RecordCommunicator>(world, std::move(recorder));
}

}  // namespace tessera::comm

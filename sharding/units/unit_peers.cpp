// Messages of optimizers between the ranks of a group.
#include "sharding/units/unit_peers.h"

#include "base/error.h"
#include "comm/scratch.h"
#include "engine/device/queue.h"

namespace tessera {
namespace {

constexpr comm::Tag tag{0, 0, comm::Phase::optimizer};

}  // namespace

void UnitPeers::add(const Unit& unit) {
  for (std::size_t i = 0; i < unit.local_parameters().size(); ++i) {
    places_[unit.local_parameters()[i].tensor.impl().get()] = {&unit, i};
  }
}

std::vector<ElementRange> UnitPeers::parts_of(const Tensor& local) const {
  const auto found = places_.find(local.impl().get());
  TESSERA_REQUIRE(found != places_.end(),
                  "an optimizer that needs whole parameters has a tensor that is none of "
                  "ShardedModel::parameters()");
  const Place& place = found->second;
  const UnitLayout& layout = place.unit->layout();
  const UnitLayout::Slot& slot = layout.slots()[place.slot];
  std::vector<ElementRange> parts;
  for (int rank = 0; rank < size(); ++rank) {
    parts.push_back(layout.local_of(slot, layout.shards() == 1 ? 0 : rank));
  }
  return parts;
}

void UnitPeers::send(const std::byte* memory, std::size_t bytes, int to) {
  const ComputeScope scope(recorder_(), SpanKind::exchange);
  communicator_.send(memory, bytes, to, tag);
}

void UnitPeers::receive(std::byte* memory, std::size_t bytes, int from) {
  const ComputeScope scope(recorder_(), SpanKind::exchange);
  communicator_.receive(memory, bytes, from, tag);
  received_bytes_ += bytes;
}

void UnitPeers::broadcast(std::byte* memory, std::size_t bytes, int root) {
  if (size() == 1) return;
  const ComputeScope scope(recorder_(), SpanKind::exchange);
  communicator_.broadcast(memory, bytes, root, tag);
  if (root != rank()) received_bytes_ += bytes;
}

// Every rank has the same numbers to sum, so the buffer grows on all of them at once.
void UnitPeers::sum(double* numbers, std::int64_t count) {
  if (size() == 1 || count == 0) return;
  const ComputeScope scope(recorder_(), SpanKind::exchange);
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(double);
  if (!summands_ || summands_->bytes() < bytes) {
    summands_.reset();
    summands_ = communicator_.allocate("an optimizer's sums", bytes, comm::Sharing::per_rank);
  }
  communicator_.acquire(*summands_, tag);
  current_queue(communicator_.device()).copy(summands_->data(), numbers, bytes);
  communicator_.all_reduce(*summands_, count, numbers, {.in_dtype = float64, .out_dtype = float64},
                           tag);
  received_bytes_ += comm::all_reduced_bytes(count, size(), float64, WireFormat::same);
}

}  // namespace tessera

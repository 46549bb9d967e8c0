// The reductions of a unit's gradient, and its memory.
#include "sharding/runtime/gradient_reducer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "comm/scratch.h"
#include "engine/device/launch.h"
#include "engine/device/queue.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/memory/wires.h"
#include "sharding/policy/strategy.h"

namespace tessera {

GradientReducer::GradientReducer(const ShardingOptions& options, const ProcessGroups& groups,
                                 const std::vector<std::unique_ptr<Unit>>& units,
                                 SideStreams& streams)
    : options_(options),
      device_(groups.world().device()),
      groups_(groups),
      units_(units),
      streams_(streams),
      reduction_group_(reduction_group_of(options, groups.world_size())),
      mean_(1.0f / static_cast<float>(groups.world_size())),
      states_(units.size()) {
  for (const auto& unit : units) {
    if (unit->has_gradient())
      unit->create_gradient_views(gradient_dtype_of(unit->layout(), options));
  }
}

void GradientReducer::allocate(const PlannedBuffer& planned) {
  const auto index = static_cast<std::size_t>(std::max(planned.unit, 0));
  UnitGradient& state = states_[index];
  switch (planned.use) {
    case BufferUse::gradient_shard:
      (void)units_[index]->gradient_shard();
      units_[index]->discard_unset_gradient();
      break;
    case BufferUse::gradient:
      state.own.buffer =
          allocate_buffer(planned.unit == 0 ? "root gradients" : "gradients", planned.bytes);
      break;
    case BufferUse::gradient_pool:
      pool_bytes_ = planned.bytes;
      free_.push_back({allocate_buffer("gradients", planned.bytes), {}});
      break;
    case BufferUse::local_sum:
      if (!state.local.memory.buffer)
        state.local.memory.buffer = allocate_buffer("no_sync sums", planned.bytes);
      break;
    case BufferUse::partial_sums: {
      Memory sums{streams_.allocate(streams_.across(), groups_.across(), "partial sums",
                                    planned.bytes, comm::Sharing::per_rank),
                  {}};
      if (planned.unit < 0) {
        partial_sums_.push_back(std::move(sums));
      } else {
        state.of_group.memory = std::move(sums);
      }
      break;
    }
    case BufferUse::reduce_scratch:
      streams_.reserve_scratch(streams_.reduce(), groups_.reduce(), planned.bytes, reduce_scratch_);
      break;
    case BufferUse::replicas_scratch:
      streams_.reserve_scratch(streams_.across(), groups_.across(), planned.bytes, across_scratch_);
      break;
    default:
      break;
  }
}

// The ranks of the first reduction must see the memory.
std::shared_ptr<comm::Buffer> GradientReducer::allocate_buffer(std::string_view name,
                                                               std::size_t bytes) {
  return streams_.allocate(streams_.reduce(), groups_.first_reduction(), name, bytes,
                           comm::Sharing::per_rank);
}

void GradientReducer::attach_gradient(Unit& unit) {
  UnitGradient& state = state_of(unit);
  Memory memory = state.own;
  if (!memory.buffer) {
    // Calls that enclose calls of others (a, b, a, b) keep more gradients unfinished than the plan
    // has buffers: the first such backward adds buffers.
    if (free_.empty()) free_.push_back({allocate_buffer("gradients", pool_bytes_), {}});
    memory = std::move(free_.front());  // its reduction began first
    free_.erase(free_.begin());
  }
  join(memory.writable, unit);
  state.buffer = std::move(memory.buffer);
  unit.gradient_storage()->attach(state.buffer->data());
  if (unit.layout().gradient_gaps().empty()) return;
  const ComputeScope kernels(streams_.recorder(), SpanKind::backward, unit.index());
  unit.zero_gradient_gaps();
}

// Touches no memory of the device.
void GradientReducer::detach_gradient(Unit& unit, Event writable) {
  UnitGradient& state = state_of(unit);
  unit.forget_gradient();
  unit.gradient_storage()->detach();
  std::shared_ptr<comm::Buffer> buffer = std::move(state.buffer);
  if (state.own.buffer) {
    state.own.writable = std::move(writable);
  } else {
    free_.push_back({std::move(buffer), std::move(writable)});
  }
}

void GradientReducer::abandon(Unit& unit) {
  if (state_of(unit).buffer) detach_gradient(unit, {});
}

void GradientReducer::join() {
  join(last_reduction_, *units_.front());
}

void GradientReducer::join(const Event& event, const Unit& unit) {
  streams_.join(event, groups_.shards() == 1 ? Exposed::all_reduce : Exposed::reduce, unit);
}

void GradientReducer::reduce(Unit& unit) {
  UnitGradient& state = state_of(unit);
  if (!state.buffer) return;
  if (!unit.received_gradient()) return detach_gradient(unit, {});
  if (!unit.gradient_is_complete()) {
    const ComputeScope kernels(streams_.recorder(), SpanKind::backward, unit.index());
    unit.complete_gradient();
  }
  if (!reduces() || state.local.are_set) {
    add_to_local_sum(unit);
    detach_gradient(unit, {});  // only this stream read it
    if (reduces()) reduce_local_sum(unit);
    return;
  }
  const Reduced reduced = enqueue_reduction(unit, state.buffer, unit.gradient_dtype());
  last_reduction_ = reduced.done;
  detach_gradient(unit, reduced.writable);
}

void GradientReducer::discard_gradient(Unit& unit) const {
  if (last_reduction_.done()) unit.discard_unset_gradient();
}

void GradientReducer::before_step(const Unit& unit) const {
  require_reduced("an optimizer's step()");
  if (loss_scale_is_known_ || !unit.has_gradient()) return;
  TESSERA_REQUIRE(unit.gradient_dtype() != float16,
                  "step() on float16 gradients of a loss that was not scaled: small ones are lost. "
                  "Scale the loss by a ts::LossScaler and give its factor to clip_grad_norm(), or "
                  "set reduce_dtype and param_dtype bfloat16 or float32; "
                  "clip_grad_norm(max_norm, 1) declares that no scale is needed");
}

GradientReducer::Reduced GradientReducer::enqueue_reduction(
    Unit& unit, const std::shared_ptr<comm::Buffer>& buffer, DType dtype) {
  const comm::Tag tag = streams_.tag_of(unit, comm::Phase::reduce);
  const bool stays_in_group = groups_.sums_in_two_levels() && !sums_across_;
  const Unit::Carried carried = stays_in_group ? Unit::Carried{} : unit.prepare_to_accumulate();
  if (groups_.shards() > 1) streams_.count_collective(scattered_bytes(unit, dtype));
  if (!groups_.sums_in_two_levels()) {
    Reduced reduced;
    comm::Communicator& group = groups_.first_reduction();
    std::tie(reduced.done, reduced.writable) = enqueue_into_shard(
        unit, SideStream::reduce, carried, reduction_of(unit, buffer, dtype, carried.is_set, tag),
        tag, [&group, buffer, tag] { group.acquire(*buffer, tag); });
    if (groups_.replicas() > 1) {
      const DType sums = unit.gradient_shard().dtype();
      streams_.count_collective(reduced_bytes(unit, dtype, sums));
    }
    return reduced;
  }
  UnitGradient& state = state_of(unit);
  Memory& sums = options_.defer_replica_sums
                     ? state.of_group.memory
                     : partial_sums_[next_partial_sums_++ % partial_sums_.size()];
  Reduced reduced = sum_within_group(unit, buffer, dtype, sums, tag);
  if (!stays_in_group) {
    reduced.done = sum_across_groups(unit, sums, reduced.done, carried, tag);
  }
  set(state.of_group, stays_in_group);
  return reduced;
}

std::pair<Event, Event> GradientReducer::enqueue_into_shard(Unit& unit, SideStream stream,
                                                            const Unit::Carried& carried,
                                                            Reduction reduction, comm::Tag tag,
                                                            std::function<void()> then) {
  // The point at which the copy to the host ends; the stream does not wait for it.
  std::shared_ptr<PointHandle> arrival;
  if (unit.gradient_is_on_host()) arrival = std::make_shared<PointHandle>();
  auto work = [this, &unit, carried, arrival, tag, stream, reduction = std::move(reduction)] {
    reduction(unit.open_gradient(carried));
    const bool elsewhere = unit.gradient_shard_is_elsewhere();
    const SideSpan copy(elsewhere ? streams_.recorder() : nullptr,
                        SideStreams::span_of(Lane::copy_back, SpanKind::copy, unit, tag.phase,
                                             unit.gradient_shard().bytes()),
                        stream);
    const PointHandle point = unit.close_gradient();
    if (arrival) *arrival = point;
  };
  std::pair<Event, Event> ends =
      streams_.enqueue(stream == SideStream::across ? streams_.across() : streams_.reduce(),
                       std::move(work), std::move(then));
  if (arrival) {
    unit.gradient_shard().storage()->set_arrival([done = ends.first, arrival] {
      done.wait();
      if (*arrival) (*arrival)->synchronize();
    });
  }
  unit.mark_gradient_set();
  return ends;
}

WireFormat GradientReducer::wire_of(DType dtype) const {
  return groups_.world_size() == 1 ? WireFormat::same : reduce_wire_of(dtype, options_);
}

GradientReducer::Reduction GradientReducer::reduction_of(
    Unit& unit, const std::shared_ptr<comm::Buffer>& buffer, DType dtype, bool accumulate,
    comm::Tag tag) {
  const DType sums = unit.gradient_shard().dtype();
  const comm::Reduction reduction{dtype, sums, reduction_group_, mean_, accumulate, wire_of(dtype)};
  const auto elements = unit.layout().gradient_elements();
  if (groups_.shards() == 1) {
    return [this, &unit, buffer, reduction, tag, elements,
            bytes = reduced_bytes(unit, dtype, sums)](std::byte* sums_out) {
      const SideSpan span(
          groups_.replicas() > 1 ? streams_.recorder() : nullptr,
          SideStreams::span_of(Lane::reduce, SpanKind::all_reduce, unit, tag.phase, bytes));
      round_gradient(device_, buffer->data(), elements, reduction.in_dtype, reduction.wire);
      groups_.across().all_reduce(*buffer, elements, sums_out, reduction, tag);
    };
  }
  return [this, &unit, buffer, reduction, tag, elements,
          bytes = scattered_bytes(unit, dtype)](std::byte* sums_out) {
    const SideSpan span(
        streams_.recorder(),
        SideStreams::span_of(Lane::reduce, SpanKind::reduce_scatter, unit, tag.phase, bytes));
    round_gradient(device_, buffer->data(), elements, reduction.in_dtype, reduction.wire);
    groups_.reduce().reduce_scatter(*buffer, unit.reduced_ranges(sums_out), reduction, tag);
  };
}

// Sums unscaled and in fp32. The next unit may be summed here while these sums are reduced between
// groups. Sums of earlier passes that have stayed in the group are added to.
GradientReducer::Reduced GradientReducer::sum_within_group(
    Unit& unit, const std::shared_ptr<comm::Buffer>& buffer, DType dtype, Memory& sums,
    comm::Tag tag) {
  const comm::Reduction reduction{dtype,
                                  unit.gradient_shard().dtype(),
                                  reduction_group_ < groups_.shards() ? reduction_group_ : 0,
                                  1.0f,
                                  state_of(unit).of_group.are_set,
                                  wire_of(dtype)};
  streams_.reduce().wait(sums.writable);
  Reduced reduced;
  std::tie(reduced.done, reduced.writable) = streams_.enqueue(
      streams_.reduce(),
      [this, &unit, buffer, sums = sums.buffer, reduction, tag,
       dropped = take_dropped_of_group(unit), bytes = scattered_bytes(unit, dtype)] {
        const SideSpan span(
            streams_.recorder(),
            SideStreams::span_of(Lane::reduce, SpanKind::reduce_scatter, unit, tag.phase, bytes));
        zero(sums->data(), reduction.out_dtype, dropped);
        round_gradient(device_, buffer->data(), unit.layout().gradient_elements(),
                       reduction.in_dtype, reduction.wire);
        groups_.reduce().reduce_scatter(*buffer, unit.reduced_ranges(sums->data()), reduction, tag);
      },
      [this, buffer, tag] { groups_.reduce().acquire(*buffer, tag); });
  return reduced;
}

Event GradientReducer::sum_across_groups(Unit& unit, Memory& sums, const Event& within,
                                         const Unit::Carried& carried, comm::Tag tag) {
  const DType dtype = unit.gradient_shard().dtype();
  streams_.across().wait(within);
  Event done;
  std::tie(done, sums.writable) = enqueue_into_shard(
      unit, SideStream::across, carried, reduction_across(unit, sums, carried.is_set, tag), tag,
      [this, sums = sums.buffer, tag] { groups_.across().acquire(*sums, tag); });
  streams_.count_collective(reduced_bytes(unit, dtype, dtype));
  return done;
}

GradientReducer::Reduction GradientReducer::reduction_across(Unit& unit, const Memory& sums,
                                                             bool accumulate, comm::Tag tag) {
  const DType dtype = unit.gradient_shard().dtype();
  const comm::Reduction reduction{
      dtype, dtype, reduction_group_ > groups_.shards() ? reduction_group_ / groups_.shards() : 0,
      mean_, accumulate};
  return [this, &unit, sums = sums.buffer, reduction, tag,
          bytes = reduced_bytes(unit, dtype, dtype)](std::byte* sums_out) {
    const SideSpan span(
        streams_.recorder(),
        SideStreams::span_of(Lane::all_reduce, SpanKind::all_reduce, unit, tag.phase, bytes));
    groups_.across().all_reduce(*sums, unit.local_gradient_elements(), sums_out, reduction, tag);
  };
}

std::uint64_t GradientReducer::scattered_bytes(const Unit& unit, DType dtype) const {
  std::vector<std::int64_t> counts;
  for (const auto& local : unit.local_segments()) counts.push_back(local.range.count);
  return comm::scattered_bytes(counts, groups_.shards(), dtype, reduce_wire_of(dtype, options_));
}

std::uint64_t GradientReducer::reduced_bytes(const Unit& unit, DType dtype, DType sums) const {
  if (groups_.shards() == 1) {
    return comm::all_reduced_bytes(unit.layout().gradient_elements(), groups_.replicas(), dtype,
                                   reduce_wire_of(dtype, options_));
  }
  return comm::all_reduced_bytes(unit.local_gradient_elements(), groups_.replicas(), sums,
                                 WireFormat::same);
}

}  // namespace tessera

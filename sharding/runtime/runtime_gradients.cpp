// Memory of gradients, their reduction, and the end of a backward.
#include <exception>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "comm/scratch.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/memory/wires.h"
#include "sharding/runtime/runtime.h"
#include "sharding/runtime/step_position.h"

namespace tessera {

void Runtime::expect_end_of_backward() {
  if (end_expected_) return;
  compare_toggles();
  for (const auto& unit : units_) check_copy(*unit);
  if (recorder_) recorder_->recording().set_base(SpanKind::backward);
  autograd::at_end_of_backward([this] { at_end_of_backward(); }, [this] { abandon_backward(); });
  end_expected_ = true;
}

// Lends the unit memory for its gradient: when its backward begins, or when a gradient arrives
// outside of it (the root's, and gradients of parameters that other units use).
void Runtime::lend_gradient(Unit& unit) {
  TESSERA_REQUIRE(autograd::in_backward(),
                  "gradients of {} are reduced and sharded; read them from the model's parameters",
                  unit.name().empty() ? "the root unit" : unit.name());
  UnitState& state = state_of(unit);
  if (!unit.has_gradient() || state.gradient_buffer) return;
  expect_end_of_backward();
  GradientMemory memory = state.own_gradient;
  if (!memory.buffer) {
    // Calls that enclose calls of others (a, b, a, b) keep more gradients unfinished than the plan
    // has buffers: the first such backward adds buffers.
    if (free_gradient_buffers_.empty()) {
      free_gradient_buffers_.push_back({allocate_gradient("gradients", pool_gradient_bytes_), {}});
    }
    memory = std::move(free_gradient_buffers_.front());  // its reduction began first
    free_gradient_buffers_.erase(free_gradient_buffers_.begin());
  }
  join_reduction(memory.writable, unit);
  state.gradient_buffer = std::move(memory.buffer);
  unit.gradient_storage()->attach(state.gradient_buffer->data());
  if (unit.layout().gradient_gaps().empty()) return;
  const ComputeScope kernels(recorder_.get(), SpanKind::backward, unit.index());
  unit.zero_gradient_gaps();
}

// Touches no memory of the device.
void Runtime::give_gradient_back(Unit& unit, Event writable) {
  UnitState& state = state_of(unit);
  unit.forget_gradient();
  unit.gradient_storage()->detach();
  std::shared_ptr<comm::Buffer> buffer = std::move(state.gradient_buffer);
  if (state.own_gradient.buffer) {
    state.own_gradient.writable = std::move(writable);
  } else {
    free_gradient_buffers_.push_back({std::move(buffer), std::move(writable)});
  }
}

void Runtime::reduce(Unit& unit) {
  UnitState& state = state_of(unit);
  if (!state.gradient_buffer) return;
  if (!unit.received_gradient()) return give_gradient_back(unit, {});
  if (!unit.gradient_is_complete()) {
    const ComputeScope kernels(recorder_.get(), SpanKind::backward, unit.index());
    unit.complete_gradient();
  }
  if (!synchronise_ || state.local_sum_is_set) {
    add_to_local_sum(unit);
    give_gradient_back(unit, {});  // only this stream read it
    if (synchronise_) reduce_local_sum(unit);
    return;
  }
  const Reduced reduced = enqueue_reduction(unit, state.gradient_buffer, unit.gradient_dtype());
  last_reduction_ = reduced.done;
  give_gradient_back(unit, reduced.writable);
}

// Drops a parameter's sum that was never reduced, after zero_grad(). When all of a unit's are
// dropped, the unit has no sum any more; when some are, they are zeroed at the next use of the
// sums.
void Runtime::drop_local_sum(Unit& unit, const detail::TensorData& parameter) {
  UnitState& state = state_of(unit);
  if (!state.local_sum_is_set) return;
  std::size_t trained = 0;
  for (std::size_t i = 0; i < unit.local_parameters().size(); ++i) {
    if (!unit.layout().slots()[i].spec.trainable) continue;
    ++trained;
    if (unit.local_parameters()[i].tensor.impl().get() == &parameter) state.dropped_sums.insert(i);
  }
  if (state.dropped_sums.size() < trained) return;
  state.dropped_sums.clear();
  set_local_sum(state, false);
}

void Runtime::set_local_sum(UnitState& state, bool is_set) {
  unreduced_sums_ += static_cast<int>(is_set) - static_cast<int>(state.local_sum_is_set);
  state.local_sum_is_set = is_set;
}

void Runtime::zero_dropped_sums(Unit& unit) {
  UnitState& state = state_of(unit);
  const std::size_t element = size_of(local_sum_dtype_of(unit.layout(), options_));
  for (const std::size_t i : state.dropped_sums) {
    const auto& slot = unit.layout().slots()[i];
    const auto& segment = unit.layout().segments()[static_cast<std::size_t>(slot.segment)];
    const auto at = static_cast<std::size_t>(segment.gradient_offset + slot.range.first);
    current_queue(device_).zero(state.local_sum.buffer->data() + at * element,
                                static_cast<std::size_t>(slot.range.count) * element);
  }
  state.dropped_sums.clear();
}

void Runtime::require_reduced(std::string_view what) const {
  if (unreduced_sums_ == 0) return;
  for (const auto& unit : units_) {
    if (!states_[static_cast<std::size_t>(unit->index())].local_sum_is_set) continue;
    misuse(
        "{} while gradients of {} that were summed inside no_sync() wait for a reduction: run the "
        "last backward of an accumulation outside of the scope, or discard them by zero_grad()",
        what, unit_title(unit->name()));
  }
}

void Runtime::before_step(const Unit& unit) const {
  require_reduced("an optimizer's step()");
  if (loss_scale_is_known_ || !unit.has_gradient()) return;
  TESSERA_REQUIRE(unit.gradient_dtype() != float16,
                  "step() on float16 gradients of a loss that was not scaled: small ones are lost. "
                  "Scale the loss by a ts::LossScaler and give its factor to clip_grad_norm(), or "
                  "set reduce_dtype and param_dtype bfloat16 or float32; "
                  "clip_grad_norm(max_norm, 1) declares that no scale is needed");
}

void Runtime::add_to_local_sum(Unit& unit) {
  UnitState& state = state_of(unit);
  join_reduction(state.local_sum.writable, unit);
  zero_dropped_sums(unit);
  const ComputeScope kernels(recorder_.get(), SpanKind::backward, unit.index());
  TESSERA_LAUNCH(device_, cast,
                 {unit.gradient_storage()->data(), state.local_sum.buffer->data(),
                  unit.layout().gradient_elements(), unit.gradient_dtype(),
                  local_sum_dtype_of(unit.layout(), options_), 1.0f, state.local_sum_is_set});
  set_local_sum(state, true);
}

void Runtime::reduce_local_sum(Unit& unit) {
  UnitState& state = state_of(unit);
  zero_dropped_sums(unit);
  const Reduced reduced =
      enqueue_reduction(unit, state.local_sum.buffer, local_sum_dtype_of(unit.layout(), options_));
  last_reduction_ = reduced.done;
  state.local_sum.writable = reduced.writable;
  set_local_sum(state, false);
}

Runtime::Reduced Runtime::enqueue_reduction(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                            DType dtype) {
  const Unit::Carried carried = unit.prepare_to_accumulate();
  const comm::Tag tag{pass_, static_cast<std::uint32_t>(unit.index()), comm::Phase::reduce};
  Reduced reduced;
  PartialSums* partial = nullptr;
  if (sums_in_two_levels()) {
    partial = &partial_sums_[next_partial_sums_++ % partial_sums_.size()];
    across_stream_->wait(sum_within_group(unit, buffer, dtype, *partial, tag));
  }
  // The point at which the copy to the host ends; the stream does not wait for it.
  std::shared_ptr<PointHandle> arrival;
  if (unit.gradient_is_on_host()) arrival = std::make_shared<PointHandle>();
  const auto from = partial != nullptr ? SideStream::across : SideStream::reduce;
  auto work = [this, &unit, carried, arrival, tag, from,
               reduction = partial != nullptr
                               ? reduction_across(unit, *partial, carried.is_set, tag)
                               : reduction_of(unit, buffer, dtype, carried.is_set, tag)] {
    reduction(unit.open_gradient(carried));
    const bool elsewhere = unit.gradient_shard_is_elsewhere();
    const SideSpan copy(
        elsewhere ? recorder_.get() : nullptr,
        span_of(Lane::copy_back, SpanKind::copy, unit, tag.phase, unit.gradient_shard().bytes()),
        from);
    const PointHandle point = unit.close_gradient();
    if (arrival) *arrival = point;
  };
  comm::Communicator& group = first_reduction_group();
  auto acquire = [&group, buffer, tag] { group.acquire(*buffer, tag); };
  if (partial == nullptr) {
    std::tie(reduced.done, reduced.writable) =
        enqueue(*reduce_stream_, std::move(work), std::move(acquire));
  } else {
    reduced.writable = enqueue(*reduce_stream_, std::move(acquire));
    std::tie(reduced.done, partial->writable) =
        enqueue(*across_stream_, std::move(work),
                [this, sums = partial->buffer, tag] { reduce_replicas_->acquire(*sums, tag); });
  }
  if (arrival) {
    unit.gradient_shard().storage()->set_arrival([done = reduced.done, arrival] {
      done.wait();
      if (*arrival) (*arrival)->synchronize();
    });
  }
  unit.mark_gradient_set();
  count_reduction(unit, dtype, unit.gradient_shard().dtype());
  return reduced;
}

WireFormat Runtime::wire_of_reduction(DType dtype) const {
  return world_size_ == 1 ? WireFormat::same : reduce_wire_of(dtype, options_);
}

Runtime::Reduction Runtime::reduction_of(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                         DType dtype, bool accumulate, comm::Tag tag) {
  const DType sums = unit.gradient_shard().dtype();
  const comm::Reduction reduction{dtype,
                                  sums,
                                  reduction_group_,
                                  1.0f / static_cast<float>(world_size_),
                                  accumulate,
                                  wire_of_reduction(dtype)};
  const auto elements = unit.layout().gradient_elements();
  if (shards_ == 1) {
    return [this, &unit, buffer, reduction, tag, elements,
            bytes = reduced_bytes(unit, dtype, sums)](std::byte* sums_out) {
      const SideSpan span(replicas() > 1 ? recorder_.get() : nullptr,
                          span_of(Lane::reduce, SpanKind::all_reduce, unit, tag.phase, bytes));
      round_gradient(device_, buffer->data(), elements, reduction.in_dtype, reduction.wire);
      reduce_replicas_->all_reduce(*buffer, elements, sums_out, reduction, tag);
    };
  }
  return [this, &unit, buffer, reduction, tag, elements,
          bytes = scattered_bytes(unit, dtype)](std::byte* sums_out) {
    const SideSpan span(recorder_.get(),
                        span_of(Lane::reduce, SpanKind::reduce_scatter, unit, tag.phase, bytes));
    round_gradient(device_, buffer->data(), elements, reduction.in_dtype, reduction.wire);
    reduce_group_->reduce_scatter(*buffer, unit.reduced_ranges(sums_out), reduction, tag);
  };
}

// Sums unscaled and in fp32. The next unit may be summed here while these sums are reduced between
// groups.
Event Runtime::sum_within_group(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                DType dtype, PartialSums& sums, comm::Tag tag) {
  const comm::Reduction reduction{
      dtype, unit.gradient_shard().dtype(), reduction_group_ < shards_ ? reduction_group_ : 0, 1.0f,
      false, wire_of_reduction(dtype)};
  reduce_stream_->wait(sums.writable);
  return enqueue(*reduce_stream_, [this, &unit, buffer, sums = sums.buffer, reduction, tag,
                                   bytes = scattered_bytes(unit, dtype)] {
    const SideSpan span(recorder_.get(),
                        span_of(Lane::reduce, SpanKind::reduce_scatter, unit, tag.phase, bytes));
    round_gradient(device_, buffer->data(), unit.layout().gradient_elements(), reduction.in_dtype,
                   reduction.wire);
    reduce_group_->reduce_scatter(*buffer, unit.reduced_ranges(sums->data()), reduction, tag);
  });
}

Runtime::Reduction Runtime::reduction_across(Unit& unit, const PartialSums& sums, bool accumulate,
                                             comm::Tag tag) {
  const DType dtype = unit.gradient_shard().dtype();
  const comm::Reduction reduction{dtype, dtype,
                                  reduction_group_ > shards_ ? reduction_group_ / shards_ : 0,
                                  1.0f / static_cast<float>(world_size_), accumulate};
  return [this, &unit, sums = sums.buffer, reduction, tag,
          bytes = reduced_bytes(unit, dtype, dtype)](std::byte* sums_out) {
    const SideSpan span(recorder_.get(),
                        span_of(Lane::all_reduce, SpanKind::all_reduce, unit, tag.phase, bytes));
    reduce_replicas_->all_reduce(*sums, unit.local_gradient_elements(), sums_out, reduction, tag);
  };
}

void Runtime::count_reduction(const Unit& unit, DType dtype, DType sums) {
  if (shards_ > 1) {
    statistics_.bytes += scattered_bytes(unit, dtype);
    ++statistics_.collectives;
  }
  if (replicas() > 1) {
    statistics_.bytes += reduced_bytes(unit, dtype, sums);
    ++statistics_.collectives;
  }
}

std::uint64_t Runtime::scattered_bytes(const Unit& unit, DType dtype) const {
  std::vector<std::int64_t> counts;
  for (const auto& local : unit.local_segments()) counts.push_back(local.range.count);
  return comm::scattered_bytes(counts, shards_, dtype, reduce_wire_of(dtype, options_));
}

std::uint64_t Runtime::reduced_bytes(const Unit& unit, DType dtype, DType sums) const {
  if (shards_ == 1) {
    return comm::all_reduced_bytes(unit.layout().gradient_elements(), replicas(), dtype,
                                   reduce_wire_of(dtype, options_));
  }
  return comm::all_reduced_bytes(unit.local_gradient_elements(), replicas(), sums,
                                 WireFormat::same);
}

void Runtime::at_end_of_backward() {
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  if (recorder_) recorder_->recording().end_backward();
  set_step_position({comm::Phase::optimizer, {}});
  for (auto it = units_.rbegin(); it != units_.rend(); ++it) {
    reduce(**it);
    // Sums of no_sync passes wait for the next pass that synchronises, whether it used the unit or
    // not.
    if (synchronise_ && state_of(**it).local_sum_is_set) reduce_local_sum(**it);
  }
  join_reduction(last_reduction_, *units_.front());
  for (const auto& unit : units_) {
    if (!stays_after_backward(*unit)) reshard_unless_used(*unit);
  }
  order_.end_backward(backward_calls_);
  end_pass();
}

// An exception ended the pass: gradients that are not reduced yet are dropped. Reduced ones stay.
// The device may have failed, so nothing is put into its queues.
void Runtime::abandon_backward() {
  for (const auto& unit : units_) {
    if (state_of(*unit).gradient_buffer) give_gradient_back(*unit, {});
  }
  order_.abandon();
  end_pass();
  if (recorder_) recorder_->recording().abandon_backward();
  // Code that catches the exception may read reduced gradients.
  try {
    join_reduction(last_reduction_, *units_.front());
  } catch (const std::exception&) {
    // A failure of the reductions: it ended the pass, or the next use of the stream reports it.
  }
}

void Runtime::end_pass() {
  end_expected_ = false;
  backward_calls_.clear();
  next_backward_ = 0;
  for (UnitState& state : states_) state.open_backwards = state.awaited_backwards = 0;
  ++pass_;
}

}  // namespace tessera

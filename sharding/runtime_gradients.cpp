// Memory for gradients, their reduction, and the end of a backward.
#include <exception>
#include <utility>

#include "engine/autograd.h"
#include "engine/launch.h"
#include "kernels/base/error.h"
#include "sharding/runtime.h"
#include "sharding/step_position.h"

namespace tessera {

void Runtime::expect_end_of_backward() {
  if (end_expected_) return;
  if (recorder_) recorder_->recording().set_base(SpanKind::backward);
  autograd::at_end_of_backward([this] { at_end_of_backward(); }, [this] { abandon_backward(); });
  end_expected_ = true;
}

// Lends the unit memory for its gradient: when its backward begins, or when a gradient arrives
// outside of it (the root's, and those of parameters that others use).
void Runtime::lend_gradient(Unit& unit) {
  TESSERA_REQUIRE(autograd::in_backward(),
                  "gradients of {} are reduced and sharded; read them from the model's parameters",
                  unit.name().empty() ? "the root unit" : unit.name());
  UnitState& state = state_of(unit);
  if (!unit.has_gradient() || state.gradient_buffer) return;
  expect_end_of_backward();
  GradientMemory memory = state.own_gradient;
  if (!memory.buffer) {
    // Calls that wrap around others' (a, b, a, b) keep more gradients unfinished than the plan has
    // buffers: a first such backward adds them.
    if (free_gradient_buffers_.empty()) {
      free_gradient_buffers_.push_back({allocate_gradient("gradients", pool_gradient_bytes_), {}});
    }
    memory = std::move(free_gradient_buffers_.front());  // the one whose reduction began first
    free_gradient_buffers_.erase(free_gradient_buffers_.begin());
  }
  join_reduction(memory.writable, unit);
  state.gradient_buffer = std::move(memory.buffer);
  unit.gradient_storage()->attach(state.gradient_buffer->data());
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
  {
    const ComputeScope kernels(recorder_.get(), SpanKind::backward, unit.index());
    unit.complete_gradient();
  }
  if (!synchronise_ || state.local_sum_is_set) {
    add_to_local_sum(unit);
    give_gradient_back(unit, {});  // read by nobody else
    if (synchronise_) reduce_local_sum(unit);
    return;
  }
  const Reduced reduced = enqueue_reduction(unit, state.gradient_buffer, unit.gradient_dtype());
  last_reduction_ = reduced.done;
  give_gradient_back(unit, reduced.writable);
}

void Runtime::add_to_local_sum(Unit& unit) {
  UnitState& state = state_of(unit);
  join_reduction(state.local_sum.writable, unit);
  const ComputeScope kernels(recorder_.get(), SpanKind::backward, unit.index());
  TESSERA_LAUNCH(device_, cast,
                 {unit.gradient_storage()->data(), state.local_sum.buffer->data(),
                  unit.layout().gradient_elements(), unit.gradient_dtype(),
                  local_sum_dtype_of(unit.layout(), options_), 1.0f, state.local_sum_is_set});
  state.local_sum_is_set = true;
}

void Runtime::reduce_local_sum(Unit& unit) {
  UnitState& state = state_of(unit);
  const Reduced reduced =
      enqueue_reduction(unit, state.local_sum.buffer, local_sum_dtype_of(unit.layout(), options_));
  last_reduction_ = reduced.done;
  state.local_sum.writable = reduced.writable;
  state.local_sum_is_set = false;
}

Runtime::Reduced Runtime::enqueue_reduction(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                            DType dtype) {
  const Unit::Carried carried = unit.prepare_to_accumulate();
  const comm::Tag tag{pass_, static_cast<std::uint32_t>(unit.index()), comm::Phase::reduce};
  Reduced reduced;
  // On its way to the host, which the stream does not wait for.
  const auto arrival = std::make_shared<PointHandle>();
  const auto work = [this, &unit, carried, arrival, tag,
                     reduction = reduction_of(unit, buffer, dtype, tag)] {
    reduction(unit.open_gradient(carried));
    const bool elsewhere = unit.gradient_shard_is_elsewhere();
    const SideSpan copy(
        elsewhere ? recorder_.get() : nullptr,
        span_of(Lane::copy_back, SpanKind::copy, unit, tag.phase, unit.gradient_shard().bytes()));
    *arrival = unit.close_gradient();
  };
  reduced.done = enqueue(*reduce_stream_, work);
  if (unit.gradient_is_on_host()) {
    unit.gradient_shard().storage()->set_arrival([done = reduced.done, arrival] {
      done.wait();
      if (*arrival) (*arrival)->synchronize();
    });
  }
  comm::Communicator& group = first_reduction_group();
  reduced.writable =
      enqueue(*reduce_stream_, [&group, buffer, tag] { group.acquire(*buffer, tag); });
  unit.mark_gradient_set();
  count_reduction(unit, dtype, unit.gradient_shard().dtype());
  return reduced;
}

Runtime::Reduction Runtime::reduction_of(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                         DType dtype, comm::Tag tag) {
  const DType sums = unit.gradient_shard().dtype();
  comm::Reduction last{dtype, sums, reduction_group_, 1.0f / static_cast<float>(world_size_),
                       unit.gradient_is_set()};
  if (shards_ == 1) {
    return [this, &unit, buffer, last, tag,
            bytes = reduced_bytes(unit, dtype, sums)](std::byte* sums_out) {
      const SideSpan span(replicas() > 1 ? recorder_.get() : nullptr,
                          span_of(Lane::reduce, SpanKind::all_reduce, unit, tag.phase, bytes));
      reduce_replicas_->all_reduce(*buffer, unit.layout().gradient_elements(), sums_out, last, tag);
    };
  }
  if (replicas() == 1) {
    return [this, &unit, buffer, last, tag,
            bytes = scattered_bytes(unit, dtype)](std::byte* sums_out) {
      const SideSpan span(recorder_.get(),
                          span_of(Lane::reduce, SpanKind::reduce_scatter, unit, tag.phase, bytes));
      reduce_group_->reduce_scatter(*buffer, unit.reduced_ranges(sums_out), last, tag);
    };
  }
  // Sums of the group first, unscaled and in fp32; then the sums of the groups.
  const comm::Reduction first{dtype, sums, reduction_group_ < shards_ ? reduction_group_ : 0, 1.0f,
                              false};
  last.in_dtype = sums;
  last.group = reduction_group_ > shards_ ? reduction_group_ / shards_ : 0;
  return [this, &unit, buffer, first, last, tag, scattered = scattered_bytes(unit, dtype),
          reduced = reduced_bytes(unit, dtype, sums)](std::byte* sums_out) {
    {
      const SideSpan span(recorder_.get(), span_of(Lane::reduce, SpanKind::reduce_scatter, unit,
                                                   tag.phase, scattered));
      reduce_replicas_->acquire(*partial_sums_, tag);
      reduce_group_->reduce_scatter(*buffer, unit.reduced_ranges(partial_sums_->data()), first,
                                    tag);
    }
    const SideSpan span(recorder_.get(),
                        span_of(Lane::reduce, SpanKind::all_reduce, unit, tag.phase, reduced));
    reduce_replicas_->all_reduce(*partial_sums_, unit.local_gradient_elements(), sums_out, last,
                                 tag);
  };
}

void Runtime::count_reduction(const Unit& unit, DType wire, DType sums) {
  if (shards_ > 1) {
    statistics_.bytes += scattered_bytes(unit, wire);
    ++statistics_.collectives;
  }
  if (replicas() > 1) {
    statistics_.bytes += reduced_bytes(unit, wire, sums);
    ++statistics_.collectives;
  }
}

std::uint64_t Runtime::scattered_bytes(const Unit& unit, DType wire) const {
  std::uint64_t elements = 0;
  for (const auto& local : unit.local_segments()) {
    elements += static_cast<std::uint64_t>(local.range.count);
  }
  return static_cast<std::uint64_t>(shards_ - 1) * elements * size_of(wire);
}

// An all-reduce moves its data twice.
std::uint64_t Runtime::reduced_bytes(const Unit& unit, DType wire, DType sums) const {
  const auto copies = static_cast<std::uint64_t>(replicas());
  const std::uint64_t bytes =
      shards_ == 1 ? static_cast<std::uint64_t>(unit.layout().gradient_elements()) * size_of(wire)
                   : static_cast<std::uint64_t>(unit.local_gradient_elements()) * size_of(sums);
  return 2 * bytes * (copies - 1) / copies;
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
  if (row_.gathered != Gathered::until_step) {
    for (const auto& unit : units_) {
      if (!stays_until_synchronised(*unit)) reshard_unless_used(*unit);
    }
  }
  order_.end_backward(backward_calls_);
  end_pass();
}

// An exception ended the pass: gradients that are not reduced yet are dropped. What was reduced
// stays. The device may have failed: nothing is put into its queues.
void Runtime::abandon_backward() {
  for (const auto& unit : units_) {
    if (state_of(*unit).gradient_buffer) give_gradient_back(*unit, {});
  }
  order_.abandon();
  end_pass();
  if (recorder_) recorder_->recording().abandon_backward();
  // Whoever catches the exception may read what was reduced.
  try {
    join_reduction(last_reduction_, *units_.front());
  } catch (const std::exception&) {
    // A failure of the reductions: what ended the pass, or what the next use of the stream says.
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

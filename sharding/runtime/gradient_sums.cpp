// Sums of passes that are not reduced, or not between groups, until a later pass.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/device/queue.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/runtime/gradient_reducer.h"

namespace tessera {

void GradientReducer::add_to_local_sum(Unit& unit) {
  Sums& sums = state_of(unit).local;
  join(sums.memory.writable, unit);
  zero_dropped_local(unit);
  const ComputeScope kernels(streams_.recorder(), SpanKind::backward, unit.index());
  TESSERA_LAUNCH(device_, cast,
                 {unit.gradient_storage()->data(), sums.memory.buffer->data(),
                  unit.layout().gradient_elements(), unit.gradient_dtype(),
                  local_sum_dtype_of(unit.layout(), options_), 1.0f, sums.are_set});
  set(sums, true);
}

void GradientReducer::reduce_local_sum(Unit& unit) {
  Sums& sums = state_of(unit).local;
  zero_dropped_local(unit);
  const Reduced reduced =
      enqueue_reduction(unit, sums.memory.buffer, local_sum_dtype_of(unit.layout(), options_));
  last_reduction_ = reduced.done;
  sums.memory.writable = reduced.writable;
  set(sums, false);
}

void GradientReducer::reduce_earlier_sums(Unit& unit) {
  UnitGradient& state = state_of(unit);
  if (state.local.are_set) reduce_local_sum(unit);
  if (!state.of_group.are_set || !sums_across_) return;
  const comm::Tag tag = streams_.tag_of(unit, comm::Phase::reduce);
  const Unit::Carried carried = unit.prepare_to_accumulate();
  Event within;
  if (const auto dropped = take_dropped_of_group(unit); !dropped.empty()) {
    within = streams_.enqueue(streams_.reduce(), [this, sums = state.of_group.memory.buffer,
                                                  dropped, dtype = unit.gradient_shard().dtype()] {
      zero(sums->data(), dtype, dropped);
    });
  }
  last_reduction_ = sum_across_groups(unit, state.of_group.memory, within, carried, tag);
  set(state.of_group, false);
}

void GradientReducer::drop_sums(const Unit& unit, const detail::TensorData& parameter) {
  UnitGradient& state = state_of(unit);
  drop(unit, state.local, parameter);
  drop(unit, state.of_group, parameter);
}

void GradientReducer::drop(const Unit& unit, Sums& sums, const detail::TensorData& parameter) {
  if (!sums.are_set) return;
  std::size_t trained = 0;
  for (std::size_t i = 0; i < unit.local_parameters().size(); ++i) {
    if (!unit.layout().slots()[i].spec.trainable) continue;
    ++trained;
    if (unit.local_parameters()[i].tensor.impl().get() == &parameter) sums.dropped.insert(i);
  }
  if (sums.dropped.size() < trained) return;
  sums.dropped.clear();
  set(sums, false);
}

void GradientReducer::set(Sums& sums, bool are_set) {
  unreduced_sums_ += static_cast<int>(are_set) - static_cast<int>(sums.are_set);
  sums.are_set = are_set;
}

void GradientReducer::zero(std::byte* sums, DType dtype,
                           const std::vector<ElementRange>& parts) const {
  for (const ElementRange& part : parts) {
    current_queue(device_).zero(sums + static_cast<std::size_t>(part.first) * size_of(dtype),
                                static_cast<std::size_t>(part.count) * size_of(dtype));
  }
}

void GradientReducer::zero_dropped_local(const Unit& unit) {
  Sums& sums = state_of(unit).local;
  std::vector<ElementRange> parts;
  for (const std::size_t i : sums.dropped) {
    const auto& slot = unit.layout().slots()[i];
    const auto& segment = unit.layout().segments()[static_cast<std::size_t>(slot.segment)];
    parts.push_back({segment.gradient_offset + slot.range.first, slot.range.count});
  }
  zero(sums.memory.buffer->data(), local_sum_dtype_of(unit.layout(), options_), parts);
  sums.dropped.clear();
}

std::vector<ElementRange> GradientReducer::take_dropped_of_group(const Unit& unit) {
  std::vector<ElementRange> parts;
  for (const std::size_t i : std::exchange(state_of(unit).of_group.dropped, {})) {
    const auto& slot = unit.layout().slots()[i];
    for (const Unit::LocalSegment& local : unit.local_segments()) {
      if (local.segment != slot.segment) continue;
      const std::int64_t first = std::max(slot.range.first, local.range.first);
      const std::int64_t end =
          std::min(slot.range.first + slot.range.count, local.range.first + local.range.count);
      if (first < end) parts.push_back({local.offset + first - local.range.first, end - first});
    }
  }
  return parts;
}

void GradientReducer::require_reduced(std::string_view what) const {
  if (unreduced_sums_ == 0) return;
  for (const auto& unit : units_) {
    const UnitGradient& state = state_of(*unit);
    if (!state.local.are_set && !state.of_group.are_set) continue;
    TESSERA_REQUIRE(state.local.are_set,
                    "{} while gradients of {} wait for their sum between groups: call "
                    "set_requires_all_reduce(true) before the last backward of an accumulation, or "
                    "discard them by zero_grad()",
                    what, unit_title(unit->name()));
    misuse(
        "{} while gradients of {} that were summed inside no_sync() wait for a reduction: run the "
        "last backward of an accumulation outside of the scope, or discard them by zero_grad()",
        what, unit_title(unit->name()));
  }
}

}  // namespace tessera

// What users ask of the schedule between its own decisions.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "kernels/base/error.h"
#include "sharding/runtime.h"

namespace tessera {
namespace {

std::string said_of(std::string_view unit) {
  return unit.empty() ? "the root unit" : "unit " + std::string(unit);
}

}  // namespace

Unit& Runtime::unit_named(std::string_view name) {
  for (const auto& unit : units_) {
    if (unit->name() == name) return *unit;
  }
  std::string names;
  for (const auto& unit : units_) {
    if (!unit->is_root()) names += (names.empty() ? "" : ", ") + unit->name();
  }
  misuse("there is no unit {}; units are the root, which is \"\", {}", name,
         names.empty() ? "and no others" : "and " + names);
}

void Runtime::unshard_by_hand(std::string_view name, bool async_op) {
  Unit& unit = unit_named(name);
  UnitState& state = state_of(unit);
  if (unit.computes_on_master() || unit.layout().slots().empty()) return;
  const ComputeScope own(recorder_.get(), SpanKind::schedule, unit.index());
  if (state.parameters == ParameterState::sharded) {
    const comm::Phase phase =
        autograd::in_backward() ? comm::Phase::backward : comm::Phase::forward;
    gather(unit, phase, Need::soon);
    if (state.parameters == ParameterState::sharded) {  // no turn is free: memory of its own
      if (!state.scope_parameters)
        state.scope_parameters = allocate_parameters(*whole_.ranks, unit.layout().bytes());
      state.parameter_buffer = std::move(state.scope_parameters);
      state.owner = BufferOwner::scope;
      start_gather(unit, phase);
    }
    state.asked_for = true;
  }
  if (!async_op) await_gather(unit);
}

void Runtime::reshard_by_hand(std::string_view name) {
  Unit& unit = unit_named(name);
  const std::string title = said_of(name);
  TESSERA_REQUIRE(held_ == 0, "reshard of {} inside an unsharded(model) scope, which keeps it",
                  title);
  TESSERA_REQUIRE(!state_of(unit).in_use(),
                  "reshard of {} in the middle of its {}: its parameters are in use", title,
                  state_of(unit).open_forwards > 0 ? "forward" : "backward");
  if (unit.is_root()) {  // whose own forward is not seen
    for (const UnitState& state : states_) {
      TESSERA_REQUIRE(state.open_forwards == 0 && !autograd::in_backward(),
                      "reshard of the root unit in the middle of a {}: its parameters are in use",
                      autograd::in_backward() ? "backward" : "forward");
    }
  }
  const ComputeScope own(recorder_.get(), SpanKind::schedule, unit.index());
  reshard(unit);
}

void Runtime::set_requires_gradient_sync(bool sync) {
  TESSERA_REQUIRE(!autograd::in_backward(),
                  "set_requires_gradient_sync in the middle of a backward: some of its gradients "
                  "are reduced already; call it before");
  TESSERA_REQUIRE(!in_no_sync_,
                  "set_requires_gradient_sync inside a no_sync() scope, which says the same: one "
                  "of them is enough");
  if (!sync) allocate_local_sums();
  synchronise_ = sync;
}

void Runtime::set_reshard_after_backward(bool reshards) {
  TESSERA_REQUIRE(!autograd::in_backward(),
                  "set_reshard_after_backward in the middle of a backward: some of its units are "
                  "freed already; call it before");
  ShardingOptions asked = options_;
  asked.reshard_after_backward = reshards;
  std::vector<std::string_view> names;
  for (const auto& unit : units_) names.push_back(unit->name());
  check_reshard(asked, names, shards_);
  reshard_after_backward_ = reshards;
}

void Runtime::hold() {
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  if (held_ == 0) gather_all();
  ++held_;
}

// What training has no room for is allocated first, for all units or none.
void Runtime::gather_all() {
  std::vector<Unit*> made;
  std::size_t spare = whole_.free.size();
  try {
    for (const auto& unit : units_) {
      UnitState& state = state_of(*unit);
      if (state.parameters != ParameterState::sharded || state.own_parameters) continue;
      if (unit->layout().slots().empty()) continue;
      if (spare > 0 && !state.part_is_set) {
        --spare;
        continue;
      }
      made.push_back(unit.get());
      if (!state.scope_parameters)
        state.scope_parameters = allocate_parameters(*whole_.ranks, unit->layout().bytes());
    }
  } catch (...) {
    for (UnitState& state : states_) {
      if (state.scope_parameters) drop(state.scope_parameters);
    }
    throw;
  }
  for (Unit* const unit : made) {
    UnitState& state = state_of(*unit);
    state.parameter_buffer = std::move(state.scope_parameters);
    state.owner = BufferOwner::scope;
    start_gather(*unit, comm::Phase::other);
  }
  for (const auto& unit : units_) gather(*unit, comm::Phase::other);
  for (const auto& unit : units_) await_gather(*unit);
}

void Runtime::let_go() noexcept {
  if (--held_ > 0) return;
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  for (const auto& unit : units_) {
    try {
      if (!stays_between_passes(*unit)) reshard_unless_used(*unit);
    } catch (const std::exception& error) {  // the device has failed: the next call on it says so
      std::fprintf(stderr, "after an unsharded scope: %s\n", error.what());
    }
  }
}

}  // namespace tessera

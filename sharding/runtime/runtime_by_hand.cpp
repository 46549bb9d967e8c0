// Calls by which users control the schedule between its own decisions.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "sharding/runtime/runtime.h"

namespace tessera {

Unit& Runtime::unit_named(std::string_view name) {
  for (const auto& unit : units_) {
    if (unit->name() == name) return *unit;
  }
  std::string names;
  for (const auto& unit : units_) {
    if (!unit->is_root()) names += (names.empty() ? "" : ", ") + unit->name();
  }
  misuse("no unit is called {}; units are the root, which is \"\", {}", name,
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
    if (state.parameters == ParameterState::sharded) {  // no pool buffer is free: separate memory
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
  const std::string title = unit_title(name);
  TESSERA_REQUIRE(held_ == 0, "reshard of {} inside an unsharded(model) scope, which keeps it",
                  title);
  TESSERA_REQUIRE(!state_of(unit).in_use(),
                  "reshard of {} in the middle of its {}: its parameters are in use", title,
                  state_of(unit).open_forwards > 0 ? "forward" : "backward");
  if (unit.is_root()) {  // its own forward has no hooks
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
                  "set_requires_gradient_sync inside a no_sync() scope, which does the same: use "
                  "one of them");
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

// Only a parameter that was trainable when it was sharded has a place for its gradient.
void Runtime::toggle_requires_grad(Unit& unit, const detail::TensorData& tensor) {
  const auto& locals = unit.local_parameters();
  std::size_t i = 0;
  while (i < locals.size() && unit.views()[i].impl().get() != &tensor &&
         locals[i].tensor.impl().get() != &tensor) {
    ++i;
  }
  TESSERA_REQUIRE(i < locals.size(), "requires_grad of a view of {}: set it on the parameter",
                  unit_title(unit.name()));
  TESSERA_REQUIRE(unit.layout().slots()[i].spec.trainable,
                  "parameter {} was frozen when its module was sharded, and has no place for a "
                  "gradient: set requires_grad before fully_shard() and turn it off after it where "
                  "it is to be frozen for a while, or unwrap() the ShardedModel and shard again",
                  locals[i].name);
  bool busy = autograd::in_backward();
  for (const UnitState& state : states_) busy = busy || state.open_forwards > 0;
  TESSERA_REQUIRE(!busy,
                  "requires_grad of parameter {} cannot change in the middle of a forward or a "
                  "backward: change it between steps",
                  locals[i].name);
  const bool trains = !tensor.requires_grad;
  Tensor local = locals[i].tensor;
  unit.views()[i].impl()->requires_grad = trains;
  local.impl()->requires_grad = trains;
  local.zero_grad();  // a gradient of before is of no use after
  if (!toggled_) toggled_ = locals[i].name;
}

// A rank that alone has changed something waits here, while the others have nothing to compare and
// go on into their backward: an error ends that, and this rank knows why.
std::vector<std::string> Runtime::exchange_toggles(const std::string& mine) {
  try {
    return world_->exchange(mine, {pass_, 0, comm::Phase::backward});
  } catch (const Error& error) {
    throw Error(error.code(),
                "rank " + std::to_string(rank_) + " changed requires_grad of " + *toggled_ +
                    " and waited for all ranks to compare theirs: change it on all ranks alike, "
                    "before the same backward; " +
                    error.what());
  }
}

// Ranks that train different parameters would add zeros to each other's gradients.
void Runtime::compare_toggles() {
  if (!toggled_) return;
  std::string mine;
  std::vector<const std::string*> names;
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->local_parameters()) {
      mine += parameter.tensor.requires_grad() ? '1' : '0';
      names.push_back(&parameter.name);
    }
  }
  const auto all = exchange_toggles(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    const auto differs = std::mismatch(mine.begin(), mine.end(), all[rank].begin()).first;
    const auto at = static_cast<std::size_t>(differs - mine.begin());
    fail(ErrorCode::configuration,
         "requires_grad of {} is {} on rank {} and {} on rank {}: change it on all ranks",
         *names.at(at), mine[at] == '1', rank_, mine[at] != '1', rank);
  }
  toggled_.reset();  // ranks that differ are refused again
}

}  // namespace tessera

// Gathering and freeing parameters around forwards and backwards.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "engine/autograd.h"
#include "kernels/base/error.h"
#include "sharding/runtime.h"
#include "sharding/step_position.h"

namespace tessera {
namespace {

// Counts a call that begins, unless an exception ends it at once.
class Opening {
 public:
  explicit Opening(int& open) : open_(open) { ++open_; }
  ~Opening() {
    if (!done_) --open_;
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  void succeed() { done_ = true; }

 private:
  int& open_;
  bool done_ = false;
};

std::uint64_t share_of(const std::vector<comm::GatheredRange>& ranges, int shards) {
  std::uint64_t bytes = 0;
  for (const comm::GatheredRange& range : ranges)
    bytes += range.bytes / static_cast<std::size_t>(shards);
  return bytes;
}

Exposed exposed_by(comm::Phase gather) {
  if (gather == comm::Phase::forward) return Exposed::gather_forward;
  return gather == comm::Phase::backward ? Exposed::gather_backward : Exposed::other;
}

}  // namespace

void Runtime::before_forward(Unit& unit, const ModuleCall& call) {
  set_step_position({call.recompute ? comm::Phase::backward : comm::Phase::forward, unit.name()});
  const ComputeScope own(recorder_.get(), SpanKind::schedule, unit.index());
  Opening opening(state_of(unit).open_forwards);
  if (call.recompute) {  // no step of a forward: the backward has its own order
    gather(unit, comm::Phase::backward);
    if (options_.backward_prefetch == BackwardPrefetch::pre) prefetch_recomputation(call);
  } else {
    order_.begin_call(unit.index(), call.number, grad_enabled());
    unit.discard_unset_gradient();
    units_.front()->discard_unset_gradient();  // the root's own forward is not seen
    gather(unit, comm::Phase::forward);
    if (options_.forward_prefetch) prefetch_forward();
  }
  await_gather(unit);
  opening.succeed();
  if (recorder_) {
    recorder_->recording().open(
        {call.recompute ? SpanKind::recompute : SpanKind::forward, Exposed::other, unit.index()});
  }
}

void Runtime::after_forward(Unit& unit, const ModuleCall& call) {
  const ComputeScope own(recorder_.get(), SpanKind::schedule, unit.index());
  if (recorder_) {
    recorder_->recording().close(call.recompute ? SpanKind::recompute : SpanKind::forward,
                                 unit.index());
  }
  if (!call.recompute) set_step_position({comm::Phase::forward, {}});
  --state_of(unit).open_forwards;
  if (call.recompute) return;  // its backward comes next, and needs the parameters
  if (!grad_enabled()) {
    if (row_.gathered != Gathered::until_step) reshard_unless_used(unit);
    return;
  }
  // The last unit of a forward is the first of the backward: it stays.
  if (row_.gathered == Gathered::per_pass && !stays_after_forward(unit)) reshard_unless_used(unit);
}

void Runtime::abandon_forward(Unit& unit, const ModuleCall& call) {
  if (recorder_) {
    recorder_->recording().close(call.recompute ? SpanKind::recompute : SpanKind::forward,
                                 unit.index());
  }
  --state_of(unit).open_forwards;
  order_.abandon();
}

// Memory is taken and given back by calls; the root has none, and comes when it is needed. What
// needs it is a forward: whoever only reads asks Storage::require_present().
void Runtime::use_root() {
  Unit& root = *units_.front();
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  if (autograd::in_backward()) {
    gather(root, comm::Phase::backward);
  } else {
    order_.begin_call(root.index(), 0, grad_enabled());
    if (recorder_) recorder_->recording().set_base(SpanKind::forward);
    gather(root, comm::Phase::forward);
    if (options_.forward_prefetch) prefetch_forward();
  }
  await_gather(root);
}

void Runtime::expect_backward(Unit& unit, const ModuleCall& call) {
  const ComputeScope own(recorder_.get(), SpanKind::schedule, unit.index());
  expect_end_of_backward();
  ++state_of(unit).awaited_backwards;
  backward_calls_.push_back({unit.index(), call.number});
}

void Runtime::before_backward(Unit& unit, const ModuleCall& /*call*/) {
  set_step_position({comm::Phase::backward, unit.name()});
  const ComputeScope own(recorder_.get(), SpanKind::schedule, unit.index());
  Opening opening(state_of(unit).open_backwards);
  ++next_backward_;
  gather(unit, comm::Phase::backward);
  if (options_.backward_prefetch == BackwardPrefetch::pre) prefetch_backward();
  await_gather(unit);
  lend_gradient(unit);
  opening.succeed();
  if (recorder_) recorder_->recording().open({SpanKind::backward, Exposed::other, unit.index()});
}

void Runtime::after_backward(Unit& unit, const ModuleCall& /*call*/) {
  set_step_position({comm::Phase::backward, {}});
  const ComputeScope own(recorder_.get(), SpanKind::schedule, unit.index());
  if (recorder_) recorder_->recording().close(SpanKind::backward, unit.index());
  UnitState& state = state_of(unit);
  --state.open_backwards;
  --state.awaited_backwards;
  if (options_.backward_prefetch == BackwardPrefetch::post) prefetch_backward();
  const bool again = next_backward_ < backward_calls_.size() &&
                     backward_calls_[next_backward_].unit == unit.index();
  if ((row_.gathered == Gathered::per_pass && !again) ||
      (row_.gathered == Gathered::until_backward && state.awaited_backwards == 0 &&
       !stays_until_synchronised(unit))) {
    reshard_unless_used(unit);
  }
  // A unit that was called several times is reduced once, under every strategy.
  if (state.awaited_backwards == 0 && row_.reduce == ReduceAt::unit_backward) reduce(unit);
}

void Runtime::gather(Unit& unit, comm::Phase phase, Need need) {
  if (state_of(unit).parameters != ParameterState::sharded) return;
  if (unit.layout().slots().empty()) return;
  if (take_parameter_buffer(unit, need)) start_gather(unit, phase);
}

bool Runtime::take_parameter_buffer(Unit& unit, Need need) {
  UnitState& state = state_of(unit);
  if (state.own_parameters) {
    state.parameter_buffer = state.own_parameters;
    state.owner = BufferOwner::unit;
    return true;
  }
  if (free_parameter_buffers_.empty() && !evict_an_idle_unit()) {
    if (need == Need::soon) return false;
    // More units are under way together than lie inside one another: modules that call modules
    // which are not theirs.
    free_parameter_buffers_.push_back(allocate_parameters(pool_parameter_bytes_));
  }
  state.parameter_buffer = std::move(free_parameter_buffers_.back());
  free_parameter_buffers_.pop_back();
  state.owner = BufferOwner::pool;
  in_pool_.push_back(&unit);
  return true;
}

// A unit that is whole though nothing computes with it: it was kept for a backward that did not
// come, or prefetched for a call that did not.
bool Runtime::evict_an_idle_unit() {
  const auto idle = std::find_if(in_pool_.begin(), in_pool_.end(),
                                 [this](const Unit* unit) { return !state_of(*unit).in_use(); });
  if (idle == in_pool_.end()) return false;
  reshard(**idle);
  return true;
}

void Runtime::start_gather(Unit& unit, comm::Phase phase) {
  UnitState& state = state_of(unit);
  state.parameters = ParameterState::gathering;
  state.gather_phase = phase;
  const bool own = state.owner == BufferOwner::unit;
  const auto part = own && state.own_has_frozen ? Unit::Part::trainable : Unit::Part::whole;
  state.own_has_frozen = own;
  const comm::Tag tag{pass_, static_cast<std::uint32_t>(unit.index()), phase};
  const std::vector<comm::GatheredRange> ranges = unit.gathered_ranges(part);
  state.gathered =
      enqueue(*gather_stream_, [this, &unit, buffer = state.parameter_buffer, part, ranges, tag] {
        // Of one rank it is a cast of its own.
        const SideSpan gather(
            shards_ > 1 ? recorder_.get() : nullptr,
            span_of(Lane::gather, SpanKind::all_gather, unit, tag.phase, gathered_bytes(ranges)));
        gather_group_->acquire(*buffer, tag);
        {
          const SideSpan copy(recorder_.get(), span_of(Lane::copy, SpanKind::copy, unit, tag.phase,
                                                       share_of(ranges, shards_)));
          state_of(unit).uploaded = unit.write_share(buffer->data(), part);
        }
        gather_group_->all_gather(*buffer, ranges, tag);
      });
  if (shards_ == 1) return;
  ++statistics_.collectives;
  statistics_.bytes += gathered_bytes(ranges);
}

std::uint64_t Runtime::gathered_bytes(const std::vector<comm::GatheredRange>& ranges) const {
  std::uint64_t bytes = 0;
  for (const comm::GatheredRange& range : ranges)
    bytes += range.bytes - range.bytes / static_cast<std::size_t>(shards_);
  return bytes;
}

void Runtime::await_gather(Unit& unit) {
  UnitState& state = state_of(unit);
  if (state.parameters != ParameterState::gathering) return;
  join(state.gathered, exposed_by(state.gather_phase), unit);
  unit.parameter_storage()->attach(state.parameter_buffer->data());
  state.parameters = ParameterState::gathered;
}

void Runtime::reshard(Unit& unit) {
  UnitState& state = state_of(unit);
  if (unit.computes_on_master() || state.parameters == ParameterState::sharded) return;
  await_gather(unit);
  unit.parameter_storage()->detach();
  std::shared_ptr<comm::Buffer> buffer = std::move(state.parameter_buffer);
  state.parameters = ParameterState::sharded;
  std::erase(in_pool_, &unit);
  buffer->release();
  if (state.owner == BufferOwner::pool) free_parameter_buffers_.push_back(std::move(buffer));
  if (state.owner != BufferOwner::scope) return;
  if (options_.keep_unsharded_memory) {
    state.scope_parameters = std::move(buffer);
  } else {
    drop(buffer);
  }
}

void Runtime::reshard_unless_used(Unit& unit) {
  const UnitState& state = state_of(unit);
  // What is frozen whole does not change: in memory of its own it stays.
  const bool stays = state.owner == BufferOwner::unit && !unit.has_gradient();
  if (held_ == 0 && !state.in_use() && !stays) reshard(unit);
}

// The units that are expected from here on; the root is among them where it is used late, and stays
// once it is there.
bool Runtime::stays_after_forward(const Unit& unit) const {
  const auto next = std::find_if(order_.next(), order_.end(), [](int index) { return index != 0; });
  return next == order_.end() ? order_.is_known() : *next == unit.index();
}

// Between the passes of a no_sync() scope no optimizer changes parameters: what has memory of its
// own is not gathered again.
bool Runtime::stays_until_synchronised(const Unit& unit) {
  return !synchronise_ && state_of(unit).owner == BufferOwner::unit;
}

void Runtime::prefetch_forward() {
  for (auto next = order_.next(); next != order_.end(); ++next) {
    Unit& unit = *units_[static_cast<std::size_t>(*next)];
    if (unit.is_root() && state_of(unit).parameters != ParameterState::sharded) continue;
    return gather(unit, comm::Phase::forward, Need::soon);
  }
}

void Runtime::prefetch_backward() {
  if (next_backward_ >= backward_calls_.size()) return;
  const auto unit = static_cast<std::size_t>(backward_calls_[next_backward_].unit);
  gather(*units_[unit], comm::Phase::backward, Need::soon);
}

// A call that runs again: its backward is next, and the one behind that is gathered meanwhile.
// Where several run again together, they do so in the forward's order before their backwards come.
void Runtime::prefetch_recomputation(const ModuleCall& call) {
  const auto first = backward_calls_.begin() + static_cast<std::ptrdiff_t>(next_backward_);
  const auto here = std::find_if(first, backward_calls_.end(), [&](const CallOrder::Call& other) {
    return other.number == call.number;
  });
  if (here == backward_calls_.end()) return;
  const auto next = here == first ? std::next(here) : std::prev(here);
  if (next == backward_calls_.end()) return;
  gather(*units_[static_cast<std::size_t>(next->unit)], comm::Phase::backward, Need::soon);
}

void Runtime::hold() {
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  if (held_ == 0) gather_all();
  ++held_;
}

// What training has no room for is allocated first, for all units or none.
void Runtime::gather_all() {
  std::vector<Unit*> made;
  std::size_t spare = free_parameter_buffers_.size();
  try {
    for (const auto& unit : units_) {
      UnitState& state = state_of(*unit);
      if (state.parameters != ParameterState::sharded || state.own_parameters) continue;
      if (unit->layout().slots().empty()) continue;
      if (spare > 0) {
        --spare;
        continue;
      }
      made.push_back(unit.get());
      if (!state.scope_parameters)
        state.scope_parameters = allocate_parameters(unit->layout().bytes());
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
  if (--held_ > 0 || row_.gathered == Gathered::until_step) return;
  const ComputeScope own(recorder_.get(), SpanKind::schedule);
  for (const auto& unit : units_) {
    try {
      reshard_unless_used(*unit);
    } catch (const std::exception& error) {  // the device has failed: the next call on it says so
      std::fprintf(stderr, "after an unsharded scope: %s\n", error.what());
    }
  }
}

void Runtime::invalidate(Unit& unit, bool trainable) {
  TESSERA_REQUIRE(held_ == 0, "parameters cannot change inside an unsharded(model) scope");
  UnitState& state = state_of(unit);
  // Parameter after parameter, and only the first one of a unit frees it.
  const bool is_free = state.parameters == ParameterState::sharded;
  const ComputeScope own(is_free ? nullptr : recorder_.get(), SpanKind::schedule, unit.index());
  reshard(unit);
  if (const PointHandle uploaded = std::move(state.uploaded)) uploaded->synchronize();
  if (!trainable) state.own_has_frozen = false;
}

}  // namespace tessera

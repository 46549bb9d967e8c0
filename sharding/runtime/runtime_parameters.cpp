// Gathers and frees parameters around forwards and backwards.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/scratch.h"
#include "engine/autograd.h"
#include "sharding/memory/reshard.h"
#include "sharding/memory/wires.h"
#include "sharding/runtime/runtime.h"
#include "sharding/runtime/step_position.h"

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

std::uint64_t share_of(const std::vector<comm::GatheredRange>& ranges, int ranks) {
  std::uint64_t bytes = 0;
  for (const comm::GatheredRange& range : ranges)
    bytes += range.bytes / static_cast<std::size_t>(ranks);
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
  state_of(unit).asked_for = false;
  if (call.recompute) {  // not a part of a forward: the backward has its own order
    gather(unit, comm::Phase::backward);
    if (options_.backward_prefetch == BackwardPrefetch::pre) prefetch_recomputation(call);
  } else {
    order_.begin_call(unit.index(), call.number, grad_enabled());
    check_copy(unit);
    unit.discard_unset_gradient();
    units_.front()->discard_unset_gradient();  // the root's own forward has no hooks
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
    if (!stays_between_passes(unit)) reshard_unless_used(unit);
    return;
  }
  // The last unit of a forward is the first of the backward, so it stays.
  const bool frees = state_of(unit).reshard.gathered == Gathered::per_pass;
  if (frees && !stays_after_forward(unit)) reshard_unless_used(unit);
}

void Runtime::abandon_forward(Unit& unit, const ModuleCall& call) {
  if (recorder_) {
    recorder_->recording().close(call.recompute ? SpanKind::recompute : SpanKind::forward,
                                 unit.index());
  }
  --state_of(unit).open_forwards;
  order_.abandon();
}

// Calls take and return memory; the root has no calls and is gathered when it is needed. Only a
// forward needs it: code that only reads uses Storage::require_present().
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
  const Gathered gathered = state.reshard.gathered;
  if ((gathered == Gathered::per_pass && !again) ||
      (gathered == Gathered::until_backward && state.awaited_backwards == 0 &&
       !stays_after_backward(unit))) {
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

// A gather from the parts that fewer ranks kept needs memory that those ranks see.
ParameterPool& Runtime::pool_of(const UnitState& state) {
  return state.part_is_set ? resharded_.at(state.reshard.ranks) : whole_;
}

bool Runtime::take_parameter_buffer(Unit& unit, Need need) {
  UnitState& state = state_of(unit);
  if (state.own_parameters) {
    state.parameter_buffer = state.own_parameters;
    state.owner = BufferOwner::unit;
    return true;
  }
  ParameterPool& pool = pool_of(state);
  if (pool.free.empty() && !evict_an_idle_unit(pool, need)) {
    if (need == Need::soon) return false;
    // More units are under way together than the nesting allows: modules call modules that they do
    // not contain.
    pool.free.push_back(allocate_parameters(*pool.ranks, pool.bytes));
  }
  state.parameter_buffer = std::move(pool.free.back());
  pool.free.pop_back();
  state.owner = BufferOwner::pool;
  state.pool = &pool;
  pool.units.push_back(&unit);
  return true;
}

// Evicts a unit that is whole but unused: it was kept for a backward that did not come, or
// prefetched for a call that did not. A prefetch does not evict units that are still expected.
bool Runtime::evict_an_idle_unit(ParameterPool& pool, Need need) {
  const auto find = [&](bool also_expected) {
    return std::find_if(pool.units.begin(), pool.units.end(), [&](const Unit* unit) {
      const UnitState& state = state_of(*unit);
      return !state.in_use() && (also_expected || !(state.expected || state.asked_for));
    });
  };
  auto idle = find(false);
  if (idle == pool.units.end() && need == Need::now) idle = find(true);
  if (idle == pool.units.end()) return false;
  reshard(**idle);
  return true;
}

void Runtime::start_gather(Unit& unit, comm::Phase phase) {
  UnitState& state = state_of(unit);
  state.parameters = ParameterState::gathering;
  state.gather_phase = phase;
  if (state.has_pointers) {
    if (state.part_is_set) check_copy(unit);
    state.gathered_masters = unit.checksum_of_masters();
  }
  const comm::Tag tag{pass_, static_cast<std::uint32_t>(unit.index()), phase};
  state.gathered = enqueue(*gather_stream_, [this, &unit, gathering = next_gathering(unit, tag)] {
    run_gather(unit, gathering);
  });
}

Runtime::Gathering Runtime::next_gathering(Unit& unit, comm::Tag tag) {
  UnitState& state = state_of(unit);
  Gathering gathering{.buffer = state.parameter_buffer, .tag = tag};
  const bool own = state.owner == BufferOwner::unit;
  gathering.from_parts = state.owner == BufferOwner::pool && state.pool != &whole_;
  gathering.keeps_part = static_cast<bool>(state.part) && !gathering.from_parts;
  if (own && state.own_has_frozen) gathering.part = Unit::Part::trainable;
  state.own_has_frozen = own;
  state.part_is_set = state.part_is_set || gathering.keeps_part;
  const comm::Communicator& group = gathering.from_parts ? *state.pool->ranks : *whole_.ranks;
  if (group.size() > 1) {
    ++statistics_.collectives;
    statistics_.bytes += ranges_of(state, gathering).bytes;
  }
  return gathering;
}

const GatherRanges& Runtime::ranges_of(const UnitState& state, const Gathering& gathering) {
  if (gathering.from_parts) return state.from_parts;
  return gathering.part == Unit::Part::whole ? state.whole : state.trainable;
}

// Runs on the gather stream. The fields of `state` that it reads change only before the first
// gather, or belong to this gather.
void Runtime::run_gather(Unit& unit, const Gathering& gathering) {
  UnitState& state = state_of(unit);
  comm::Communicator& group =
      gathering.from_parts ? *resharded_.at(state.reshard.ranks).ranks : *whole_.ranks;
  const int ranks = group.size();
  const auto& [ranges, bytes] = ranges_of(state, gathering);
  const comm::Tag tag = gathering.tag;
  comm::Buffer& buffer = *gathering.buffer;
  // With one rank a gather is only a cast.
  const SideSpan gather(ranks > 1 ? recorder_.get() : nullptr,
                        span_of(Lane::gather, SpanKind::all_gather, unit, tag.phase, bytes));
  group.acquire(buffer, tag);
  {
    const SideSpan copy(recorder_.get(), span_of(Lane::copy, SpanKind::copy, unit, tag.phase,
                                                 share_of(ranges, ranks)));
    if (gathering.from_parts) {
      restore_resharded(unit.layout(), ranks, group.rank(), state.part.data(), buffer.data(),
                        device_);
    } else {
      state.uploaded = unit.write_share(buffer.data(), gathering.part);
      round_share(device_, buffer.data(), ranges, ranks, unit.shard());
    }
  }
  group.all_gather(buffer, ranges, tag);
  if (!gathering.keeps_part) return;
  const SideSpan copy(recorder_.get(),
                      span_of(Lane::copy, SpanKind::copy, unit, tag.phase, state.part.bytes()));
  const comm::Communicator& few = *resharded_.at(state.reshard.ranks).ranks;
  keep_resharded(unit.layout(), few.size(), few.rank(), buffer.data(), state.part.data(), device_);
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
  state.asked_for = false;
  buffer->release();
  if (state.owner == BufferOwner::pool) {
    std::erase(state.pool->units, &unit);
    state.pool->free.push_back(std::move(buffer));
  }
  if (state.owner != BufferOwner::scope) return;
  if (options_.keep_unsharded_memory) {
    state.scope_parameters = std::move(buffer);
  } else {
    drop(buffer);
  }
}

void Runtime::reshard_unless_used(Unit& unit) {
  const UnitState& state = state_of(unit);
  // A completely frozen unit does not change, so it stays in its own memory.
  const bool stays = state.owner == BufferOwner::unit && !unit.has_gradient();
  if (held_ == 0 && !state.in_use() && !stays) reshard(unit);
}

// Looks at the units that are still expected; the root is among them when it is used late, and
// stays once it is gathered.
bool Runtime::stays_after_forward(const Unit& unit) const {
  const auto next = std::find_if(order_.next(), order_.end(), [](int index) { return index != 0; });
  return next == order_.end() ? order_.is_known() : *next == unit.index();
}

// True for a unit that stays until the optimizer changes it.
bool Runtime::stays_between_passes(const Unit& unit) {
  const UnitState& state = state_of(unit);
  return state.reshard.gathered == Gathered::until_step ||
         (!reshard_after_backward_ && state.owner == BufferOwner::unit);
}

// Between the passes of a no_sync() scope no optimizer changes parameters: a unit with its own
// memory is not gathered again.
bool Runtime::stays_after_backward(const Unit& unit) {
  return stays_between_passes(unit) || (!synchronise_ && state_of(unit).owner == BufferOwner::unit);
}

void Runtime::prefetch(std::vector<int> next, comm::Phase phase) {
  for (const int index : expected_) states_[static_cast<std::size_t>(index)].expected = false;
  expected_ = std::move(next);
  for (const int index : expected_) states_[static_cast<std::size_t>(index)].expected = true;
  for (const int index : expected_)
    gather(*units_[static_cast<std::size_t>(index)], phase, Need::soon);
}

void Runtime::prefetch_forward() {
  const auto most = static_cast<std::size_t>(options_.limit_all_gathers - 1);
  std::vector<int> next;
  for (auto call = order_.next(); call != order_.end() && next.size() < most; ++call) {
    const bool is_there =
        states_[static_cast<std::size_t>(*call)].parameters != ParameterState::sharded;
    if (*call == 0 && is_there) continue;
    next.push_back(*call);
  }
  prefetch(std::move(next), comm::Phase::forward);
}

void Runtime::prefetch_backward() {
  const auto most = static_cast<std::size_t>(options_.limit_all_gathers - 1);
  std::vector<int> next;
  for (std::size_t i = next_backward_; i < backward_calls_.size() && next.size() < most; ++i)
    next.push_back(backward_calls_[i].unit);
  prefetch(std::move(next), comm::Phase::backward);
}

// For calls that run again: their backward is next, and the units after it are prefetched. Several
// that run again together do so in the forward's order before their backwards.
void Runtime::prefetch_recomputation(const ModuleCall& call) {
  const auto most = static_cast<std::size_t>(options_.limit_all_gathers - 1);
  const auto first = backward_calls_.begin() + static_cast<std::ptrdiff_t>(next_backward_);
  const auto here = std::find_if(first, backward_calls_.end(), [&](const CallOrder::Call& other) {
    return other.number == call.number;
  });
  if (here == backward_calls_.end()) return;
  std::vector<int> next;
  if (here == first) {
    for (auto it = std::next(here); it != backward_calls_.end() && next.size() < most; ++it)
      next.push_back(it->unit);
  } else {
    for (auto it = here; it != first && next.size() < most;) next.push_back((--it)->unit);
  }
  prefetch(std::move(next), comm::Phase::backward);
}

void Runtime::invalidate(Unit& unit, bool trainable, Storage::Write how) {
  TESSERA_REQUIRE(held_ == 0,
                  "parameters cannot change inside an unsharded(model) scope; if this only "
                  "reads, take the pointer from a const Tensor");
  UnitState& state = state_of(unit);
  if (how == Storage::Write::by_pointer) state.has_pointers = true;
  // The writes come parameter by parameter; only the first one of a unit frees it.
  const bool is_free = state.parameters == ParameterState::sharded;
  const ComputeScope own(is_free ? nullptr : recorder_.get(), SpanKind::schedule, unit.index());
  reshard(unit);
  state.part_is_set = false;
  if (const PointHandle uploaded = std::move(state.uploaded)) uploaded->synchronize();
  if (!trainable) state.own_has_frozen = false;
}

void Runtime::check_copy(const Unit& unit) const {
  const UnitState& state = states_[static_cast<std::size_t>(unit.index())];
  if (!state.has_pointers || unit.computes_on_master()) return;
  if (state.parameters == ParameterState::sharded && !state.part_is_set) return;
  TESSERA_REQUIRE(unit.checksum_of_masters() == state.gathered_masters,
                  "{} computes with a copy of parameters that were changed later through a pointer "
                  "of Tensor::data(): take the pointer anew for each change, from a Tensor that is "
                  "not const, or use copy_from()",
                  unit_title(unit.name()));
}

}  // namespace tessera

#include "sharding/runtime/parameter_gatherer.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/text/print.h"
#include "comm/scratch.h"
#include "engine/device/memory_kind.h"
#include "sharding/memory/reshard.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/memory/wires.h"

namespace tessera {
namespace {

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

ParameterGatherer::ParameterGatherer(const ShardingOptions& options, const ProcessGroups& groups,
                                     const std::vector<std::unique_ptr<Unit>>& units,
                                     const OpenCalls& calls, SideStreams& streams)
    : options_(options),
      device_(groups.world().device()),
      units_(units),
      calls_(calls),
      streams_(streams),
      states_(units.size()),
      reshard_after_backward_(options.reshard_after_backward) {
  whole_.ranks = &groups.gather();
  for (const auto& unit : units) {
    UnitParameters& state = state_of(*unit);
    state.reshard = reshard_of(options, unit->name(), groups.shards());
    const int ranks = state.reshard.ranks;
    if (ranks > 0) resharded_[ranks].ranks = &groups.resharded(ranks);
    find_ranges(*unit);
    if (unit->computes_on_master()) state.parameters = State::unsharded;
  }
}

void ParameterGatherer::find_ranges(const Unit& unit) {
  UnitParameters& state = state_of(unit);
  const int ranks = whole_.ranks->size();
  state.whole.ranges = ranges_to_gather(unit.layout(), true, options_);
  state.trainable.ranges = ranges_to_gather(unit.layout(), false, options_);
  state.whole.bytes = comm::gathered_bytes(state.whole.ranges, ranks);
  state.trainable.bytes = comm::gathered_bytes(state.trainable.ranges, ranks);
  if (state.reshard.ranks == 0) return;
  // Kept parts were rounded already: a part consists of whole shards, so the blocks are the same.
  state.from_parts.ranges = state.whole.ranges;
  state.from_parts.bytes = comm::gathered_bytes(state.from_parts.ranges,
                                                resharded_.at(state.reshard.ranks).ranks->size());
}

void ParameterGatherer::allocate(const PlannedBuffer& planned) {
  const auto index = static_cast<std::size_t>(std::max(planned.unit, 0));
  switch (planned.use) {
    case BufferUse::gathered:
      states_[index].own = allocate_buffer(*whole_.ranks, planned.bytes);
      break;
    case BufferUse::gathered_pool: {
      Pool& pool = pool_of(planned.ranks);
      pool.bytes = planned.bytes;
      pool.free.push_back(allocate_buffer(*pool.ranks, planned.bytes));
      break;
    }
    case BufferUse::resharded:
      allocate_part(states_[index], planned.bytes);
      break;
    case BufferUse::gather_scratch: {
      Pool& pool = pool_of(planned.ranks);
      streams_.reserve_scratch(streams_.gather(), *pool.ranks, planned.bytes, pool.scratch);
      break;
    }
    default:
      break;
  }
}

std::shared_ptr<comm::Buffer> ParameterGatherer::allocate_buffer(comm::Communicator& ranks,
                                                                 std::size_t bytes) {
  return streams_.allocate(streams_.gather(), ranks, "parameters", bytes, comm::Sharing::one_copy);
}

void ParameterGatherer::allocate_part(UnitParameters& state, std::size_t bytes) {
  const MemoryScope kind(MemoryKind::communication);
  state.part = Tensor::empty({static_cast<std::int64_t>(bytes)}, uint8, device_);
  streams_.count_buffer(bytes);
}

// A rank that leaves in the middle of a pass must not make ranks wait that continue to their own
// end.
void ParameterGatherer::release_at_end() noexcept {
  for (const auto& unit : units_) {
    const UnitParameters& state = state_of(*unit);
    if (state.parameters != State::unsharded || !state.buffer) continue;
    try {
      state.buffer->release();
    } catch (const std::exception& error) {  // also reported to code that waits for the device
      print_err("releasing the parameters of {}: {}\n", unit_title(unit->name()), error.what());
    }
  }
}

void ParameterGatherer::unshard(Unit& unit, comm::Phase phase, Need need) {
  if (!is_sharded(unit) || unit.layout().slots().empty()) return;
  if (take_buffer(unit, need)) start(unit, phase);
}

bool ParameterGatherer::take_buffer(Unit& unit, Need need) {
  UnitParameters& state = state_of(unit);
  if (state.own) {
    state.buffer = state.own;
    state.owner = Owner::unit;
    return true;
  }
  // A gather from the parts that fewer ranks kept needs memory that those ranks see.
  Pool& pool = state.part_is_set ? resharded_.at(state.reshard.ranks) : whole_;
  if (pool.free.empty() && !evict_an_idle_unit(pool, need)) {
    if (need == Need::soon) return false;
    // More units are under way together than the nesting allows: modules call modules that they do
    // not contain.
    pool.free.push_back(allocate_buffer(*pool.ranks, pool.bytes));
  }
  state.buffer = std::move(pool.free.back());
  pool.free.pop_back();
  state.owner = Owner::pool;
  state.pool = &pool;
  pool.units.push_back(&unit);
  return true;
}

// Evicts a unit that is whole but unused: it was kept for a backward that did not come, or
// prefetched for a call that did not. A prefetch does not evict units that are still expected.
bool ParameterGatherer::evict_an_idle_unit(Pool& pool, Need need) {
  const auto find = [&](bool also_expected) {
    return std::find_if(pool.units.begin(), pool.units.end(), [&](const Unit* unit) {
      const UnitParameters& state = state_of(*unit);
      return !calls_.in_use(*unit) && (also_expected || !(state.expected || state.asked_for));
    });
  };
  auto idle = find(false);
  if (idle == pool.units.end() && need == Need::now) idle = find(true);
  if (idle == pool.units.end()) return false;
  reshard(**idle);
  return true;
}

void ParameterGatherer::start(Unit& unit, comm::Phase phase) {
  UnitParameters& state = state_of(unit);
  state.parameters = State::unsharding;
  state.phase = phase;
  if (state.has_pointers) {
    if (state.part_is_set) check_copy(unit);
    state.gathered_masters = unit.checksum_of_masters();
  }
  state.unsharded = streams_.enqueue(
      streams_.gather(),
      [this, &unit, gathering = next_gathering(unit, streams_.tag_of(unit, phase))] {
        gather(unit, gathering);
      });
}

ParameterGatherer::Gathering ParameterGatherer::next_gathering(const Unit& unit, comm::Tag tag) {
  UnitParameters& state = state_of(unit);
  Gathering gathering{.buffer = state.buffer, .tag = tag};
  const bool own = state.owner == Owner::unit;
  gathering.from_parts = state.owner == Owner::pool && state.pool != &whole_;
  gathering.keeps_part = static_cast<bool>(state.part) && !gathering.from_parts;
  if (own && state.own_has_frozen) gathering.part = Unit::Part::trainable;
  state.own_has_frozen = own;
  state.part_is_set = state.part_is_set || gathering.keeps_part;
  const comm::Communicator& group = gathering.from_parts ? *state.pool->ranks : *whole_.ranks;
  if (group.size() > 1) streams_.count_collective(ranges_of(state, gathering).bytes);
  return gathering;
}

const ParameterGatherer::Ranges& ParameterGatherer::ranges_of(const UnitParameters& state,
                                                              const Gathering& gathering) {
  if (gathering.from_parts) return state.from_parts;
  return gathering.part == Unit::Part::whole ? state.whole : state.trainable;
}

// Runs on the gather stream. The fields of `state` that it reads change only before the first
// gather, or belong to this gather.
void ParameterGatherer::gather(const Unit& unit, const Gathering& gathering) {
  UnitParameters& state = state_of(unit);
  comm::Communicator& group =
      gathering.from_parts ? *resharded_.at(state.reshard.ranks).ranks : *whole_.ranks;
  const int ranks = group.size();
  const auto& [ranges, bytes] = ranges_of(state, gathering);
  const comm::Tag tag = gathering.tag;
  comm::Buffer& buffer = *gathering.buffer;
  const auto copying = [&](std::uint64_t copied) {
    return SideStreams::span_of(Lane::copy, SpanKind::copy, unit, tag.phase, copied);
  };
  // With one rank a gather is only a cast.
  const SideSpan span(
      ranks > 1 ? streams_.recorder() : nullptr,
      SideStreams::span_of(Lane::gather, SpanKind::all_gather, unit, tag.phase, bytes));
  group.acquire(buffer, tag);
  {
    const SideSpan copy(streams_.recorder(), copying(share_of(ranges, ranks)));
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
  const SideSpan copy(streams_.recorder(), copying(state.part.bytes()));
  const comm::Communicator& few = *resharded_.at(state.reshard.ranks).ranks;
  keep_resharded(unit.layout(), few.size(), few.rank(), buffer.data(), state.part.data(), device_);
}

void ParameterGatherer::wait_for_unshard(Unit& unit) {
  UnitParameters& state = state_of(unit);
  if (state.parameters != State::unsharding) return;
  streams_.join(state.unsharded, exposed_by(state.phase), unit);
  unit.parameter_storage()->attach(state.buffer->data());
  state.parameters = State::unsharded;
}

void ParameterGatherer::reshard(Unit& unit) {
  UnitParameters& state = state_of(unit);
  if (unit.computes_on_master() || state.parameters == State::sharded) return;
  wait_for_unshard(unit);
  unit.parameter_storage()->detach();
  std::shared_ptr<comm::Buffer> buffer = std::move(state.buffer);
  state.parameters = State::sharded;
  state.asked_for = false;
  buffer->release();
  if (state.owner == Owner::pool) {
    std::erase(state.pool->units, &unit);
    state.pool->free.push_back(std::move(buffer));
  }
  if (state.owner != Owner::scope) return;
  if (options_.keep_unsharded_memory) {
    state.scope = std::move(buffer);
  } else {
    streams_.drop(buffer);
  }
}

void ParameterGatherer::reshard_unless_used(Unit& unit) {
  // A completely frozen unit does not change, so it stays in its own memory.
  const bool stays = is_in_own_memory(unit) && !unit.has_gradient();
  if (scopes_ == 0 && !calls_.in_use(unit) && !stays) reshard(unit);
}

bool ParameterGatherer::stays_between_passes(const Unit& unit) const {
  return gathered_for(unit) == Gathered::until_step ||
         (!reshard_after_backward_ && is_in_own_memory(unit));
}

void ParameterGatherer::prefetch(std::vector<int> units, comm::Phase phase) {
  for (const int index : expected_) states_[static_cast<std::size_t>(index)].expected = false;
  expected_ = std::move(units);
  for (const int index : expected_) states_[static_cast<std::size_t>(index)].expected = true;
  for (const int index : expected_)
    unshard(*units_[static_cast<std::size_t>(index)], phase, Need::soon);
}

void ParameterGatherer::unshard_ahead(Unit& unit, comm::Phase phase) {
  if (!is_sharded(unit) || unit.layout().slots().empty()) return;
  unshard(unit, phase, Need::soon);
  UnitParameters& state = state_of(unit);
  if (is_sharded(unit)) {
    if (!state.scope) state.scope = allocate_buffer(*whole_.ranks, unit.layout().bytes());
    take_scope_buffer(unit, phase);
  }
  state.asked_for = true;
}

void ParameterGatherer::take_scope_buffer(Unit& unit, comm::Phase phase) {
  UnitParameters& state = state_of(unit);
  state.buffer = std::move(state.scope);
  state.owner = Owner::scope;
  start(unit, phase);
}

void ParameterGatherer::unshard_all() {
  const ComputeScope own(streams_.recorder(), SpanKind::schedule);
  if (scopes_ == 0) {
    std::vector<Unit*> made;
    allocate_scope_buffers(made);
    for (Unit* const unit : made) take_scope_buffer(*unit, comm::Phase::other);
    for (const auto& unit : units_) unshard(*unit, comm::Phase::other);
    for (const auto& unit : units_) wait_for_unshard(*unit);
  }
  ++scopes_;
}

// Memory beyond that of training is allocated first, for all units or for none.
void ParameterGatherer::allocate_scope_buffers(std::vector<Unit*>& made) {
  std::size_t spare = whole_.free.size();
  try {
    for (const auto& unit : units_) {
      UnitParameters& state = state_of(*unit);
      if (state.parameters != State::sharded || state.own) continue;
      if (unit->layout().slots().empty()) continue;
      if (spare > 0 && !state.part_is_set) {
        --spare;
        continue;
      }
      made.push_back(unit.get());
      if (!state.scope) state.scope = allocate_buffer(*whole_.ranks, unit->layout().bytes());
    }
  } catch (...) {
    for (UnitParameters& state : states_) {
      if (state.scope) streams_.drop(state.scope);
    }
    throw;
  }
}

void ParameterGatherer::release_all() noexcept {
  if (--scopes_ > 0) return;
  const ComputeScope own(streams_.recorder(), SpanKind::schedule);
  for (const auto& unit : units_) {
    try {
      if (!stays_between_passes(*unit)) reshard_unless_used(*unit);
    } catch (const std::exception& error) {  // the next call on the device reports it
      print_err("after an unsharded scope: {}\n", error.what());
    }
  }
}

void ParameterGatherer::invalidate(Unit& unit, bool trainable, Storage::Write how) {
  TESSERA_REQUIRE(scopes_ == 0,
                  "parameters cannot change inside an unsharded(model) scope; if this only "
                  "reads, take the pointer from a const Tensor");
  UnitParameters& state = state_of(unit);
  if (how == Storage::Write::by_pointer) state.has_pointers = true;
  // The writes come parameter by parameter; only the first one of a unit frees it.
  const ComputeScope own(is_sharded(unit) ? nullptr : streams_.recorder(), SpanKind::schedule,
                         unit.index());
  reshard(unit);
  state.part_is_set = false;
  if (const PointHandle uploaded = std::move(state.uploaded)) uploaded->synchronize();
  if (!trainable) state.own_has_frozen = false;
}

void ParameterGatherer::drop_copies(Unit& unit) {
  UnitParameters& state = state_of(unit);
  reshard(unit);
  state.part_is_set = false;
  state.own_has_frozen = false;
}

void ParameterGatherer::check_copy(const Unit& unit) const {
  const UnitParameters& state = state_of(unit);
  if (!state.has_pointers || unit.computes_on_master()) return;
  if (state.parameters == State::sharded && !state.part_is_set) return;
  TESSERA_REQUIRE(unit.checksum_of_masters() == state.gathered_masters,
                  "{} computes with a copy of parameters that were changed later through a pointer "
                  "of Tensor::data(): take the pointer anew for each change, from a Tensor that is "
                  "not const, or use copy_from()",
                  unit_title(unit.name()));
}

}  // namespace tessera

// The life of a unit's parameters: unshard(), wait_for_unshard(), reshard().
//
// allocate() takes the memory from the table of sharding/memory/buffer_plan.h; after that, it
// circulates in fixed sets. A unit has its own buffer, or takes one from the pool of the ranks that
// it is gathered from. The compute stream makes all decisions in program order, so every rank makes
// the same, and returns memory to a pool after it has joined the gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "engine/device/stream.h"
#include "engine/tensor.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/policy/options.h"
#include "sharding/policy/reshard_policy.h"
#include "sharding/runtime/open_calls.h"
#include "sharding/runtime/process_groups.h"
#include "sharding/runtime/side_streams.h"
#include "sharding/units/unit.h"

namespace tessera {

// Used by the compute stream's thread.
class ParameterGatherer {
 public:
  // All arguments must outlive this object.
  ParameterGatherer(const ShardingOptions& options, const ProcessGroups& groups,
                    const std::vector<std::unique_ptr<Unit>>& units, const OpenCalls& calls,
                    SideStreams& streams);
  // Collective. Allocates a buffer of parameters, and does nothing for other buffers of the plan.
  void allocate(const PlannedBuffer& planned);
  // Releases the buffers that are in use; reports failures on stderr.
  void release_at_end() noexcept;

  // Need::soon does nothing while there is no free buffer.
  enum class Need : std::uint8_t { now, soon };
  // Begins to gather a unit that is sharded.
  void unshard(Unit& unit, comm::Phase phase, Need need = Need::now);
  void wait_for_unshard(Unit& unit);
  // Frees the unit's buffer.
  void reshard(Unit& unit);
  // reshard(), unless the unit is in use, a scope keeps it, or it never changes.
  void reshard_unless_used(Unit& unit);
  // Begins to gather units that are expected next, as far as buffers are free. They keep their
  // buffers until they are used, or until another prefetch expects others.
  void prefetch(std::vector<int> units, comm::Phase phase);

  // ShardedModel::unshard(): takes separate memory if no buffer is free, and keeps the unit until
  // it is used.
  void unshard_ahead(Unit& unit, comm::Phase phase);
  // The unit is used now: unshard_ahead() no longer keeps it.
  void begin_use(const Unit& unit) { state_of(unit).asked_for = false; }

  // Gathers all units and keeps them until release_all(); scopes nest. Error(out_of_memory) leaves
  // everything as it was.
  void unshard_all();
  void release_all() noexcept;
  [[nodiscard]] bool keeps_all() const { return scopes_ > 0; }

  [[nodiscard]] bool is_sharded(const Unit& unit) const {
    return state_of(unit).parameters == State::sharded;
  }
  // When the unit is gathered and freed.
  [[nodiscard]] Gathered gathered_for(const Unit& unit) const {
    return state_of(unit).reshard.gathered;
  }
  [[nodiscard]] bool is_in_own_memory(const Unit& unit) const {
    return state_of(unit).owner == Owner::unit;
  }
  // True for a unit that stays until the optimizer changes it.
  [[nodiscard]] bool stays_between_passes(const Unit& unit) const;
  void set_reshard_after_backward(bool reshards) { reshard_after_backward_ = reshards; }

  // Some parameters of the unit are about to change, trainable or frozen ones.
  void invalidate(Unit& unit, bool trainable, Storage::Write how);
  // Frees all copies of the unit's parameters, also of frozen ones.
  void drop_copies(Unit& unit);
  // Throws a logic_error when a copy is older than its masters; only a write through a pointer
  // causes it.
  void check_copy(const Unit& unit) const;

 private:
  // A unit that computes on its masters is always unsharded.
  enum class State : std::uint8_t { sharded, unsharding, unsharded };
  // Where a buffer returns to.
  enum class Owner : std::uint8_t {
    unit,   // keeps it: UnitParameters::own
    pool,   // units take turns
    scope,  // made for an unsharded() scope, or for an unshard() without a free buffer
  };
  // Memory that units use in turns, and the ranks that gather in it.
  struct Pool {
    comm::Communicator* ranks = nullptr;  // used on the gather stream
    std::size_t bytes = 0;                // of a buffer
    std::size_t scratch = 0;              // that the communicator has made
    std::vector<std::shared_ptr<comm::Buffer>> free;
    std::vector<Unit*> units;  // that have a buffer of it, the longest first
  };
  // The ranges that a gather publishes, and the bytes that come from other ranks.
  struct Ranges {
    std::vector<comm::GatheredRange> ranges;
    std::uint64_t bytes = 0;
  };
  struct UnitParameters {
    ReshardPlan reshard;
    Ranges whole, trainable;  // of the whole unit, and of its trainable segments
    Ranges from_parts;        // of the whole unit, from the parts that fewer ranks keep
    State parameters = State::sharded;
    std::shared_ptr<comm::Buffer> buffer;  // while unsharding or unsharded
    Owner owner = Owner::unit;             // of `buffer`
    Pool* pool = nullptr;                  // if that is the pool
    std::shared_ptr<comm::Buffer> own;     // of units that do not share the pool
    bool own_has_frozen = false;           // it holds the frozen segments, gathered or not
    std::shared_ptr<comm::Buffer> scope;   // kept for the next unsharded() scope
    Tensor part;                           // this rank's part of a resharded unit
    bool part_is_set = false;              // to the present parameters
    bool expected = false;                 // prefetched, and its use is still to come
    bool asked_for = false;                // by unshard_ahead(), and not used yet
    Event unsharded;
    comm::Phase phase = comm::Phase::other;  // for which it is unsharded
    PointHandle uploaded;       // at this point an awaited gather has read masters on the host
    bool has_pointers = false;  // to its masters, which may write them at any time
    std::uint64_t gathered_masters = 0;  // then the checksum of the masters that were gathered
  };
  // The work of a gather, decided on the compute stream.
  struct Gathering {
    std::shared_ptr<comm::Buffer> buffer;
    comm::Tag tag;
    Unit::Part part = Unit::Part::whole;
    bool from_parts = false;  // that fewer ranks kept
    bool keeps_part = false;
  };

  [[nodiscard]] UnitParameters& state_of(const Unit& unit) {
    return states_[static_cast<std::size_t>(unit.index())];
  }
  [[nodiscard]] const UnitParameters& state_of(const Unit& unit) const {
    return states_[static_cast<std::size_t>(unit.index())];
  }
  [[nodiscard]] Pool& pool_of(int ranks) { return ranks == 0 ? whole_ : resharded_.at(ranks); }
  void find_ranges(const Unit& unit);
  [[nodiscard]] std::shared_ptr<comm::Buffer> allocate_buffer(comm::Communicator& ranks,
                                                              std::size_t bytes);
  void allocate_part(UnitParameters& state, std::size_t bytes);
  void allocate_scope_buffers(std::vector<Unit*>& made);
  [[nodiscard]] bool take_buffer(Unit& unit, Need need);
  bool evict_an_idle_unit(Pool& pool, Need need);
  void take_scope_buffer(Unit& unit, comm::Phase phase);
  void start(Unit& unit, comm::Phase phase);
  [[nodiscard]] Gathering next_gathering(const Unit& unit, comm::Tag tag);
  [[nodiscard]] static const Ranges& ranges_of(const UnitParameters& state,
                                               const Gathering& gathering);
  void gather(const Unit& unit, const Gathering& gathering);

  const ShardingOptions& options_;
  Device device_;
  const std::vector<std::unique_ptr<Unit>>& units_;
  const OpenCalls& calls_;
  SideStreams& streams_;
  Pool whole_;                          // gathered from all ranks that hold one copy
  std::map<int, Pool> resharded_;       // by the number of ranks that a unit is resharded to
  std::vector<UnitParameters> states_;  // by Unit::index()
  std::vector<int> expected_;           // units with UnitParameters::expected
  bool reshard_after_backward_;
  int scopes_ = 0;  // unsharded() scopes
};

}  // namespace tessera

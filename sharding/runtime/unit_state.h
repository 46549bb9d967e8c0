// What the schedule keeps of a unit: which memory its parameters and its gradient have now, and
// what is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "comm/communicator.h"
#include "engine/device/stream.h"
#include "engine/tensor.h"
#include "sharding/memory/reshard.h"

namespace tessera {

// sharded -> gathering (a collective is under way) -> gathered -> sharded. A unit that computes on
// its masters is always gathered.
enum class ParameterState : std::uint8_t { sharded, gathering, gathered };

// Who gets the memory of gathered parameters back.
enum class BufferOwner : std::uint8_t {
  unit,   // keeps it: UnitState::own_parameters
  pool,   // units take turns
  scope,  // made for an unsharded() scope, or for an unshard() that found no other
};

class Unit;

// Memory in which units take turns, and the ranks that gather in it.
struct ParameterPool {
  std::shared_ptr<comm::Communicator> ranks;  // used on the gather stream
  std::size_t bytes = 0;                      // of a buffer
  std::size_t scratch = 0;                    // that the communicator has made
  std::vector<std::shared_ptr<comm::Buffer>> free;
  std::vector<Unit*> units;  // that have a buffer of it, the longest first
};

// Memory of gradients, and from when on it may be written again.
struct GradientMemory {
  std::shared_ptr<comm::Buffer> buffer;
  Event writable;
};

// What a gather publishes, and how many bytes of it come from other ranks.
struct GatherRanges {
  std::vector<comm::GatheredRange> ranges;
  std::uint64_t bytes = 0;
};

struct UnitState {
  ReshardPlan reshard;
  GatherRanges whole, trainable;  // of the whole unit, and of what optimizers change
  GatherRanges from_parts;        // of the whole unit, from what fewer ranks keep
  ParameterState parameters = ParameterState::sharded;
  std::shared_ptr<comm::Buffer> parameter_buffer;  // while gathering or gathered
  BufferOwner owner = BufferOwner::unit;           // of parameter_buffer
  ParameterPool* pool = nullptr;                   // where that is the pool
  std::shared_ptr<comm::Buffer> own_parameters;    // of units that do not share the pool
  bool own_has_frozen = false;                     // it holds the frozen segments, gathered or not
  std::shared_ptr<comm::Buffer> scope_parameters;  // kept for the next unsharded() scope
  Tensor part;                                     // what this rank keeps of a resharded unit
  bool part_is_set = false;                        // with what the parameters are now
  bool expected = false;                           // gathered ahead, and the schedule comes to it
  bool asked_for = false;                          // by unshard(), and not used yet
  Event gathered;
  comm::Phase gather_phase = comm::Phase::other;  // what for
  PointHandle uploaded;  // by then a gather, which has been awaited, has read masters on the host

  std::shared_ptr<comm::Buffer> gradient_buffer;  // while backward writes into it
  GradientMemory own_gradient;                    // of units that do not share the pool
  GradientMemory local_sum;                       // of passes inside no_sync()
  bool local_sum_is_set = false;
  std::set<std::size_t> dropped_sums;  // of parameters whose sums zero_grad() has dropped

  bool has_pointers = false;           // to its masters: they may be written at any time
  std::uint64_t gathered_masters = 0;  // then the checksum of the masters that were gathered

  int open_forwards = 0;      // calls of the unit's module that are under way
  int open_backwards = 0;     // the same, of their backwards
  int awaited_backwards = 0;  // calls that this backward will still come to, or is in
  [[nodiscard]] bool in_use() const { return open_forwards > 0 || open_backwards > 0; }
};

}  // namespace tessera

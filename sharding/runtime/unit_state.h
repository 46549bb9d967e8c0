// The schedule's state of a unit: the present memory of its parameters and its gradient, and the
// work under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "comm/communicator.h"
#include "engine/device/stream.h"
#include "engine/tensor.h"
#include "sharding/policy/reshard_policy.h"

namespace tessera {

// sharded -> gathering (a collective is under way) -> gathered -> sharded. A unit that computes on
// its masters is always gathered.
enum class ParameterState : std::uint8_t { sharded, gathering, gathered };

// Where the memory of gathered parameters returns to.
enum class BufferOwner : std::uint8_t {
  unit,   // keeps it: UnitState::own_parameters
  pool,   // units take turns
  scope,  // made for an unsharded() scope, or for an unshard() without a free buffer
};

class Unit;

// Memory that units use in turns, and the ranks that gather in it.
struct ParameterPool {
  std::shared_ptr<comm::Communicator> ranks;  // used on the gather stream
  std::size_t bytes = 0;                      // of a buffer
  std::size_t scratch = 0;                    // that the communicator has made
  std::vector<std::shared_ptr<comm::Buffer>> free;
  std::vector<Unit*> units;  // that have a buffer of it, the longest first
};

// Memory of gradients, and the event after which it may be written again.
struct GradientMemory {
  std::shared_ptr<comm::Buffer> buffer;
  Event writable;
};

// The ranges that a gather publishes, and the bytes that come from other ranks.
struct GatherRanges {
  std::vector<comm::GatheredRange> ranges;
  std::uint64_t bytes = 0;
};

struct UnitState {
  ReshardPlan reshard;
  GatherRanges whole, trainable;  // of the whole unit, and of its trainable segments
  GatherRanges from_parts;        // of the whole unit, from the parts that fewer ranks keep
  ParameterState parameters = ParameterState::sharded;
  std::shared_ptr<comm::Buffer> parameter_buffer;  // while gathering or gathered
  BufferOwner owner = BufferOwner::unit;           // of parameter_buffer
  ParameterPool* pool = nullptr;                   // if that is the pool
  std::shared_ptr<comm::Buffer> own_parameters;    // of units that do not share the pool
  bool own_has_frozen = false;                     // it holds the frozen segments, gathered or not
  std::shared_ptr<comm::Buffer> scope_parameters;  // kept for the next unsharded() scope
  Tensor part;                                     // this rank's part of a resharded unit
  bool part_is_set = false;                        // to the present parameters
  bool expected = false;                           // gathered ahead, and its use is still to come
  bool asked_for = false;                          // by unshard(), and not used yet
  Event gathered;
  comm::Phase gather_phase = comm::Phase::other;  // its purpose
  PointHandle uploaded;  // at this point an awaited gather has read masters on the host

  std::shared_ptr<comm::Buffer> gradient_buffer;  // while backward writes into it
  GradientMemory own_gradient;                    // of units that do not share the pool
  GradientMemory local_sum;                       // of passes inside no_sync()
  bool local_sum_is_set = false;
  std::set<std::size_t> dropped_sums;  // of parameters whose sums zero_grad() dropped

  bool has_pointers = false;           // to its masters, which may write them at any time
  std::uint64_t gathered_masters = 0;  // then the checksum of the masters that were gathered

  int open_forwards = 0;      // calls of the unit's module that are under way
  int open_backwards = 0;     // the same for their backwards
  int awaited_backwards = 0;  // calls that this backward has not finished
  [[nodiscard]] bool in_use() const { return open_forwards > 0 || open_backwards > 0; }
};

}  // namespace tessera

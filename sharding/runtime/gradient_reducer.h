// The life of a unit's gradient: memory for backward to write into, its reduction, and the sums of
// passes that are not reduced.
//
// allocate() takes the memory from the table of sharding/memory/buffer_plan.h; the first no_sync()
// adds its sums. The compute stream joins a reduction before it writes into the buffer again
// (attach_gradient, add_to_local_sum), and the last one at the end of a backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "engine/device/stream.h"
#include "engine/tensor.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/policy/options.h"
#include "sharding/runtime/process_groups.h"
#include "sharding/runtime/side_streams.h"
#include "sharding/units/unit.h"

namespace tessera {

// Used by the compute stream's thread.
class GradientReducer {
 public:
  // All arguments must outlive this object.
  GradientReducer(const ShardingOptions& options, const ProcessGroups& groups,
                  const std::vector<std::unique_ptr<Unit>>& units, SideStreams& streams);
  // Collective. Allocates a buffer of gradients, and does nothing for other buffers of the plan.
  void allocate(const PlannedBuffer& planned);

  // Which backwards reduce their gradients; the others add them to local sums.
  enum class Sync : std::uint8_t {
    every_backward,
    not_in_scope,  // ShardedModel::no_sync()
    not_by_hand,   // ShardedModel::set_requires_gradient_sync(false)
  };
  [[nodiscard]] Sync sync() const { return sync_; }
  // Other values than every_backward need the buffers of local sums.
  void set_sync(Sync sync) { sync_ = sync; }
  [[nodiscard]] bool reduces() const { return sync_ == Sync::every_backward; }
  // ShardedModel::set_requires_all_reduce(): false leaves the sums of later backwards in the group.
  void set_sums_across(bool sums) { sums_across_ = sums; }

  // True when backward has no memory yet for the unit's gradient.
  [[nodiscard]] bool needs_memory(const Unit& unit) const {
    return unit.has_gradient() && !state_of(unit).buffer;
  }
  // Gives the unit memory for its gradient: when its backward begins, or when a gradient arrives
  // outside of it (the root's, and gradients of parameters that other units use).
  void attach_gradient(Unit& unit);
  // Reduces the unit's gradient or adds it to the local sum, and takes its memory back.
  void reduce(Unit& unit);
  // Reduces sums of earlier passes that this pass has not reduced.
  void reduce_earlier_sums(Unit& unit);
  // The compute stream waits for all reductions.
  void join();
  // An exception ended the pass: drops the gradient. Puts nothing into queues of the device, which
  // may have failed.
  void abandon(Unit& unit);

  // zero_grad() of a parameter: drops its part of the unit's sums. When all parts of a unit are
  // dropped, the unit has no sums any more; when some are, they are zeroed at the next use of the
  // sums.
  void drop_sums(const Unit& unit, const detail::TensorData& parameter);
  // After that: frees the memory of the unit's gradient if none of it is set any more. (While a
  // reduction may still write it, after an error, the next forward does so.)
  void discard_gradient(Unit& unit) const;
  // Throws a logic_error, in the name of `what`, while sums of passes wait for a reduction.
  void require_reduced(std::string_view what) const;
  // Refuses the step of an optimizer that would use wrong gradients.
  void before_step(const Unit& unit) const;
  // clip_grad_norm() was given the factor of the losses (1 counts as given).
  void note_loss_scale() { loss_scale_is_known_ = true; }

 private:
  // Memory, and the event after which it may be written again.
  struct Memory {
    std::shared_ptr<comm::Buffer> buffer;
    Event writable;
  };
  // Sums of passes that are not reduced yet.
  struct Sums {
    Memory memory;
    bool are_set = false;
    std::set<std::size_t> dropped;  // parameters whose sums zero_grad() dropped
  };
  struct UnitGradient {
    std::shared_ptr<comm::Buffer> buffer;  // while backward writes into it
    Memory own;                            // of units that do not share the pool
    Sums local;                            // whole gradients, of passes inside no_sync()
    Sums of_group;  // this shard's, summed within the group: ShardingOptions::defer_replica_sums
  };
  struct Reduced {
    Event done;      // the sums are in the gradient shard
    Event writable;  // the buffer may be written again
  };
  // Leaves this shard's sums in the given memory.
  using Reduction = std::function<void(std::byte* sums)>;

  [[nodiscard]] UnitGradient& state_of(const Unit& unit) {
    return states_[static_cast<std::size_t>(unit.index())];
  }
  [[nodiscard]] const UnitGradient& state_of(const Unit& unit) const {
    return states_[static_cast<std::size_t>(unit.index())];
  }
  [[nodiscard]] std::shared_ptr<comm::Buffer> allocate_buffer(std::string_view name,
                                                              std::size_t bytes);
  void detach_gradient(Unit& unit, Event writable);
  void add_to_local_sum(Unit& unit);
  void reduce_local_sum(Unit& unit);
  void set(Sums& sums, bool are_set);
  void drop(const Unit& unit, Sums& sums, const detail::TensorData& parameter);
  void zero_dropped_local(const Unit& unit);
  // Parts of the group's sums, and forgets that they were dropped.
  [[nodiscard]] std::vector<ElementRange> take_dropped_of_group(const Unit& unit);
  void zero(std::byte* sums, DType dtype, const std::vector<ElementRange>& parts) const;
  void join(const Event& event, const Unit& unit);

  Reduced enqueue_reduction(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer, DType dtype);
  [[nodiscard]] Reduction reduction_of(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                       DType dtype, bool accumulate, comm::Tag tag);
  // Puts a reduction into the gradient shard into the stream, with what follows it there; returns
  // the points at the ends of both.
  [[nodiscard]] std::pair<Event, Event> enqueue_into_shard(Unit& unit, SideStream stream,
                                                           const Unit::Carried& carried,
                                                           Reduction reduction, comm::Tag tag,
                                                           std::function<void()> then);
  // The two reductions of HYBRID_*: within the group into partial sums, and between the groups.
  [[nodiscard]] Reduced sum_within_group(Unit& unit, const std::shared_ptr<comm::Buffer>& buffer,
                                         DType dtype, Memory& sums, comm::Tag tag);
  // After `within`, the group's own sums. Returns the point at which they are in the shard.
  [[nodiscard]] Event sum_across_groups(Unit& unit, Memory& sums, const Event& within,
                                        const Unit::Carried& carried, comm::Tag tag);
  [[nodiscard]] Reduction reduction_across(Unit& unit, const Memory& sums, bool accumulate,
                                           comm::Tag tag);
  [[nodiscard]] WireFormat wire_of(DType dtype) const;
  // Bytes that reach this rank from others.
  [[nodiscard]] std::uint64_t scattered_bytes(const Unit& unit, DType dtype) const;
  [[nodiscard]] std::uint64_t reduced_bytes(const Unit& unit, DType dtype, DType sums) const;

  const ShardingOptions& options_;
  Device device_;
  const ProcessGroups& groups_;
  const std::vector<std::unique_ptr<Unit>>& units_;
  SideStreams& streams_;
  int reduction_group_;
  float mean_;                        // the factor that makes a sum over all ranks their mean
  std::vector<UnitGradient> states_;  // by Unit::index()
  std::vector<Memory> free_;          // of the pool
  std::size_t pool_bytes_ = 0;        // of a buffer of the pool
  // Between the two reductions of HYBRID_*, used in turns; none with sums of units (of_group).
  std::vector<Memory> partial_sums_;
  std::size_t next_partial_sums_ = 0;
  std::size_t reduce_scratch_ = 0;  // bytes that the communicators have made
  std::size_t across_scratch_ = 0;
  Event last_reduction_;
  Sync sync_ = Sync::every_backward;
  bool sums_across_ = true;
  int unreduced_sums_ = 0;  // sums of units that are set
  bool loss_scale_is_known_ = false;
};

}  // namespace tessera

// Plans: the memory and traffic of a rank in a world that need not exist. A plan runs the real step
// on a device whose memory is only counted.
//
// A plan runs one rank, on its own thread, with a communicator whose peers are imagined. Kernels do
// nothing and values read as zero, so a step takes only the time of its bookkeeping. All ranks hold
// the same except for padding; the plan runs rank 0, which has no padding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/memory_kind.h"
#include "engine/optim/optimizer.h"
#include "sharding/context/context.h"
#include "sharding/policy/options.h"

namespace tessera {

struct PlanWorld {
  int ranks = 1;  // 1 to 65,536
  // `cpu`: ranks of one node, which share gathered parameters (the plan counts one rank's part of
  // them); `cuda`: ranks with a GPU each.
  DeviceType device = DeviceType::cpu;
  // Ranks that share one memory (the backends shm and local) or have separate ones (nccl). Unset:
  // depends on the device.
  std::optional<bool> one_memory = {};
  // The ranks per node when the ranks are on CPUs of several nodes, equally many on each
  // (Communicator::ranks_per_host). 0: one node.
  int ranks_per_host = 0;
  bool fixed_reduction_order = false;  // ConnectOptions::fixed_order
  bool timed = false;                  // fill MemoryPlan::step
};
inline constexpr int most_planned_ranks = 65'536;

// The calls of one step that have op, purpose and ranks in common.
struct PlannedCollective {
  std::string_view op;     // "all_gather"
  std::string_view phase;  // "forward"
  int ranks = 1;           // that take part
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;  // that reach this rank from others
};

// A rank's memory, by kind; a plan and a measurement are compared in this form. `other` includes
// the allocator's rounding.
struct RankMemory {
  MemoryUse use;
  MemoryUse in_files;      // state that lies in files instead
  MemoryUse on_host;       // state that lies on a GPU's host instead, at its peak
  std::size_t cached = 0;  // free blocks that the pool keeps in addition
  // The last step with its blocks in fixed places (engine/device/memory_step.h). `placed` is what
  // the rank then holds: the range of the places, the blocks outside of it, collective memory.
  // Without a MemoryStep there are no places.
  std::size_t placed = 0;
  std::size_t step_placed = 0;  // bytes of the range
  std::size_t step_live = 0;    // largest sum of its blocks that live at the same time
  [[nodiscard]] std::size_t of(MemoryKind kind) const {
    return use[kind] + (kind == MemoryKind::other ? use.rounding : 0);
  }
  [[nodiscard]] std::size_t total() const { return use.total(); }
};

// The calling thread's tensors at their peak since the pool's last reset_peak(), with the
// collective memory that the rank holds now.
RankMemory measure_memory(const Context& context);

struct PlannedStep;  // sharding/plan/plan_time.h

struct MemoryPlan {
  RankMemory memory;  // at the peak
  std::string unit;   // where the peak is: "" is the root
  std::string_view phase;
  std::vector<PlannedCollective> collectives;  // of one step; without control messages
  std::shared_ptr<const PlannedStep> step;     // the work of the last step; with PlanWorld::timed
  [[nodiscard]] std::size_t total() const { return memory.total(); }
  [[nodiscard]] std::uint64_t moved_bytes() const;
};

// A program under plan: its work between two calls of end_step() is a step.
class Planning {
 public:
  ~Planning();
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  // The context of the planned rank; its device is Device::planned().
  [[nodiscard]] const Context& context() const;
  void end_step();

 private:
  friend MemoryPlan plan(const PlanWorld&, const std::function<void(Planning&)>&);
  explicit Planning(const PlanWorld& world);
  struct State;
  std::unique_ptr<State> state_;
};

// Runs `program` as the planned rank. Its allocations and calls are the plan; the collectives are
// those of its last step. The first step allocates the memory that stays, so run two. Throws the
// exceptions of the program. Error(configuration) for a world that cannot be planned.
MemoryPlan plan(const PlanWorld& world, const std::function<void(Planning&)>& program);

struct PlanOptions {
  ShardingOptions sharding = {};
  // One forward of a batch; it moves tensors that it makes elsewhere to `device` first.
  std::function<Tensor(Device device)> loss;
  // Unset: AdamW.
  optim::OptimizerFactory optimizer = {};
  int micro_batches = 1;        // forwards and backwards of a step
  bool sync_each_batch = true;  // false: all but the last are within no_sync()
};

// Shards `module` and takes two steps. The module may be on `meta`; it gets its own parameters back
// afterwards.
MemoryPlan plan(nn::Module& module, const PlanWorld& world, const PlanOptions& options);

}  // namespace tessera

// Plans: what a rank of a world that need not exist would hold and send, found out by running the
// real step on a device whose memory is only counted.
//
// A plan runs one rank, on a thread of its own, with a communicator whose peers are imagined.
// Kernels do nothing and values read as zero, so a step takes as long as its bookkeeping. All ranks
// hold the same but for padding; rank 0, where nothing is padded, is planned.
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
  // `cpu`: ranks of one host, which share gathered parameters (a rank's share of them is counted);
  // `cuda`: ranks with a GPU each.
  DeviceType device = DeviceType::cpu;
  // Ranks on one memory (the backends shm and local), or with their own (nccl). Unset: as the
  // device says.
  std::optional<bool> one_memory = {};
  // Ranks on CPUs of several hosts, as many on each: how many (Communicator::ranks_per_host). 0:
  // one.
  int ranks_per_host = 0;
  bool fixed_reduction_order = false;  // ConnectOptions::fixed_order
  bool timed = false;                  // MemoryPlan::step is wanted
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

// What a rank holds, by kind: what a plan and a measurement are compared in. `other` has the
// allocator's rounding in it.
struct RankMemory {
  MemoryUse use;
  MemoryUse in_files;      // what lies in files instead
  MemoryUse on_host;       // what lies on a GPU's host instead, when that was most
  std::size_t cached = 0;  // free blocks that the pool keeps beside that
  [[nodiscard]] std::size_t of(MemoryKind kind) const {
    return use[kind] + (kind == MemoryKind::other ? use.rounding : 0);
  }
  [[nodiscard]] std::size_t total() const { return use.total(); }
};

// At the moment since the pool's last reset_peak() at which the calling thread's tensors took most,
// with the collective memory that the rank holds now.
RankMemory measure_memory(const Context& context);

struct PlannedStep;  // sharding/plan/plan_time.h

struct MemoryPlan {
  RankMemory memory;  // at the peak
  std::string unit;   // where the peak is: "" is the root
  std::string_view phase;
  std::vector<PlannedCollective> collectives;  // of one step; without control messages
  std::shared_ptr<const PlannedStep> step;     // what the last step does; of PlanWorld::timed
  [[nodiscard]] std::size_t total() const { return memory.total(); }
  [[nodiscard]] std::uint64_t moved_bytes() const;
};

// A program under plan: what it does between two calls of end_step() is a step.
class Planning {
 public:
  ~Planning();
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  // Of the planned rank; its device is Device::planned().
  [[nodiscard]] const Context& context() const;
  void end_step();

 private:
  friend MemoryPlan plan(const PlanWorld&, const std::function<void(Planning&)>&);
  explicit Planning(const PlanWorld& world);
  struct State;
  std::unique_ptr<State> state_;
};

// Runs `program` as the planned rank. What it allocates and calls is the plan; the collectives are
// those of its last step. The first step makes what stays, so let it run two. Throws what the
// program throws. Error(configuration) for a world that cannot be planned.
MemoryPlan plan(const PlanWorld& world, const std::function<void(Planning&)>& program);

struct PlanOptions {
  ShardingOptions sharding = {};
  // One forward of a batch; tensors that it makes elsewhere go to `device` first.
  std::function<Tensor(Device device)> loss;
  // Unset: AdamW.
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<nn::NamedParameter>)> optimizer = {};
  int micro_batches = 1;        // forwards and backwards of a step
  bool sync_each_batch = true;  // else all but the last are within no_sync()
};

// Shards `module` and takes two steps. The module may be on `meta`; it has its own parameters again
// afterwards.
MemoryPlan plan(nn::Module& module, const PlanWorld& world, const PlanOptions& options);

}  // namespace tessera

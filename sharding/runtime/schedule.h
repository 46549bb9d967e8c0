// The schedule: when units are unsharded, prefetched, resharded and reduced. It consists of the
// hooks of the units' modules and of the end of a backward.
//
// The compute stream (the rank's thread) runs the hooks and makes all decisions in program order,
// so every rank makes the same.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/module_call.h"
#include "engine/nn/module.h"
#include "sharding/policy/options.h"
#include "sharding/policy/strategy.h"
#include "sharding/runtime/call_order.h"
#include "sharding/runtime/gradient_reducer.h"
#include "sharding/runtime/open_calls.h"
#include "sharding/runtime/parameter_gatherer.h"
#include "sharding/runtime/requires_grad_changes.h"
#include "sharding/runtime/side_streams.h"
#include "sharding/units/unit.h"

namespace tessera {

// Used by the compute stream's thread.
class Schedule {
 public:
  // All arguments must outlive this object.
  Schedule(const ShardingOptions& options, const std::vector<std::unique_ptr<Unit>>& units,
           OpenCalls& calls, ParameterGatherer& gatherer, GradientReducer& reducer,
           RequiresGradChanges& changes, SideStreams& streams);
  Schedule(const Schedule&) = delete;
  Schedule& operator=(const Schedule&) = delete;

  // The owner of the hooks in messages.
  static constexpr std::string_view hooks_owner = "a ShardedModel";
  // The module is the unit's. It must live until remove_hooks(). A graph keeps the hooks of its
  // calls; they refuse to run after that.
  void add_hooks(nn::Module& module, Unit& unit);
  void remove_hooks();

  // One of the root's parameters is needed but not gathered: the root has no calls that are seen.
  void use_root();
  // A gradient of the unit is about to be written, and has no memory.
  void attach_gradient(Unit& unit);

 private:
  void before_forward(Unit& unit, const ModuleCall& call);
  void after_forward(Unit& unit, const ModuleCall& call);
  void abandon_forward(Unit& unit, const ModuleCall& call);
  void expect_backward(Unit& unit, const ModuleCall& call);
  void before_backward(Unit& unit, const ModuleCall& call);
  void after_backward(Unit& unit, const ModuleCall& call);
  void expect_end_of_backward();
  void end_backward();
  void abandon_backward();
  void end_pass();

  // Prefetch the coming units, up to the limit.
  void prefetch_forward();
  void prefetch_backward();
  void prefetch_recomputation(const ModuleCall& call);
  [[nodiscard]] bool stays_after_forward(const Unit& unit) const;
  [[nodiscard]] bool stays_after_backward(const Unit& unit) const;

  const ShardingOptions& options_;
  StrategyRow row_;
  const std::vector<std::unique_ptr<Unit>>& units_;
  OpenCalls& calls_;
  ParameterGatherer& gatherer_;
  GradientReducer& reducer_;
  RequiresGradChanges& changes_;
  SideStreams& streams_;
  CallOrder order_;
  std::vector<CallOrder::Call> backward_calls_;  // of this backward, in its order
  std::size_t next_backward_ = 0;                // the next place in them
  bool end_expected_ = false;
  std::vector<nn::Module*> hooked_;
  std::shared_ptr<Schedule*> self_;  // for hooks of graphs that live longer
};

}  // namespace tessera

// A sharded model at work: its parts, and the calls of its user.
//
//   ProcessGroups       the groups of ranks
//   SideStreams         the streams beside the compute stream, and what is measured of them
//   ParameterGatherer   unshard, wait_for_unshard, reshard: a unit's parameters
//   GradientReducer     memory and reduction of a unit's gradient, sums of no_sync() passes
//   Schedule            hooks: when the two do it for which unit
//   UnshardedWriter     write_unsharded()
//   RequiresGradChanges parameters that are frozen for a while
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "engine/nn/module.h"
#include "sharding/memory/buffer_plan.h"
#include "sharding/policy/options.h"
#include "sharding/runtime/gradient_reducer.h"
#include "sharding/runtime/open_calls.h"
#include "sharding/runtime/parameter_gatherer.h"
#include "sharding/runtime/process_groups.h"
#include "sharding/runtime/requires_grad_changes.h"
#include "sharding/runtime/schedule.h"
#include "sharding/runtime/side_streams.h"
#include "sharding/runtime/statistics.h"
#include "sharding/runtime/whole_parameters.h"
#include "sharding/units/activation_checkpointing.h"
#include "sharding/units/ignored_parameters.h"
#include "sharding/units/kept_precision.h"
#include "sharding/units/module_buffers.h"
#include "sharding/units/structure.h"
#include "sharding/units/unit.h"
#include "sharding/units/unit_peers.h"

namespace tessera {

class Runtime {
 public:
  // Shards the module. Allocates no collective memory yet, so ranks can first compare their units.
  // Modules below the root live as long as this object; so does the root when `owner` holds it.
  Runtime(nn::Module& root, comm::Communicator& world, const ShardingOptions& options,
          std::shared_ptr<nn::Module> owner = nullptr);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  // Collective. Allocates everything that steps need; call it before the first step.
  void allocate();

  [[nodiscard]] const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  [[nodiscard]] IgnoredParameters& ignored() const { return *ignored_; }
  [[nodiscard]] const ModuleBuffers& buffers() const { return *buffers_; }
  [[nodiscard]] const OffloadFiles& files() const { return *files_; }
  [[nodiscard]] const ShardingOptions& options() const { return options_; }
  [[nodiscard]] const ProcessGroups& groups() const { return *groups_; }
  [[nodiscard]] Device device() const { return device_; }
  // The table of all buffers; `no_sync`: with the sums of passes inside no_sync().
  [[nodiscard]] BufferPlan plan(bool no_sync) const;
  [[nodiscard]] GradientReducer& gradients() { return *reducer_; }
  [[nodiscard]] CommunicationStatistics statistics() const;
  // From the recorder's first step on, the runtime records its work in it.
  const std::shared_ptr<StepRecorder>& record();
  [[nodiscard]] StepRecorder* recorder() const { return streams_->recorder(); }

  // As documented in ShardedModel (sharding/fully_shard.h). The first begin_no_sync() and the first
  // set_requires_gradient_sync(false) are collective.
  void begin_no_sync();
  void end_no_sync() { reducer_->set_sync(GradientReducer::Sync::every_backward); }
  void set_requires_gradient_sync(bool sync);
  void set_requires_all_reduce(bool all_reduce);
  void set_reshard_after_backward(bool reshard);
  void unshard(std::string_view unit, bool async_op);
  void reshard(std::string_view unit);
  void unshard_all() { gatherer_->unshard_all(); }
  void release_all() noexcept { gatherer_->release_all(); }
  void write_unsharded(const std::function<void()>& write) { writer_->write(write); }
  void unwrap();

 private:
  // Construction, in this order.
  void check(const std::vector<UnitPlan>& plan, const IgnoredModules& ignored) const;
  void check_options(const std::vector<UnitPlan>& plan) const;
  void compare_values(std::vector<UnitPlan>& plan, std::vector<OwnedParameter>& ignored);
  void create_groups(const std::vector<UnitPlan>& plan);
  void choose_recomputation(nn::Module& root, const std::vector<UnitPlan>& plan);
  void create_files(const std::vector<UnitPlan>& plan);
  void create_units(std::vector<UnitPlan> plan);
  void create_parts();
  void create_peers();
  void watch_storages(Unit& unit);
  void watch_masters(Unit& unit);
  void own_modules(nn::Module& root);

  void stop_watching(const Unit& unit) const;
  void toggle_requires_grad(Unit& unit, const detail::TensorData& tensor);
  void allocate_local_sums();
  [[nodiscard]] std::vector<std::string_view> unit_names() const;
  [[nodiscard]] Unit& unit_named(std::string_view name);

  std::vector<std::shared_ptr<nn::Module>> owned_modules_;  // first member: destroyed last
  nn::Module* root_;
  std::weak_ptr<const void> root_life_;
  std::shared_ptr<const std::string> no_registration_;
  comm::Communicator* world_;  // used on the compute stream
  ShardingOptions options_;
  Device device_;
  std::unique_ptr<KeptPrecision> kept_;
  std::unique_ptr<RecomputedModules> recomputed_;
  std::unique_ptr<IgnoredParameters> ignored_;
  std::unique_ptr<ModuleBuffers> buffers_;
  std::unique_ptr<ProcessGroups> groups_;
  std::unique_ptr<OffloadFiles> files_;  // before the units, which use it
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<SideStreams> streams_;
  std::shared_ptr<UnitPeers> peers_;
  std::unique_ptr<OpenCalls> calls_;
  std::unique_ptr<ParameterGatherer> gatherer_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<RequiresGradChanges> changes_;
  std::unique_ptr<Schedule> schedule_;
  std::unique_ptr<UnshardedWriter> writer_;
  bool has_local_sums_ = false;
};

}  // namespace tessera

// Sets up the schedule: groups of ranks, units, hooks.
#include "sharding/runtime/runtime.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "comm/scratch.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/memory/wires.h"
#include "sharding/units/equal_values.h"

namespace tessera {
namespace {

constexpr std::string_view hooks_owner = "a ShardedModel";

// Releases a buffer of a unit whose runtime ends. A destructor must not throw: a GPU that has
// failed reports it here, and also to code that waits for it.
void release_at_end(comm::Buffer& buffer, const std::string& unit) {
  try {
    buffer.release();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "releasing the parameters of %s: %s\n", unit.c_str(), error.what());
  }
}

constexpr const char* ended =
    "has no memory any more: the ShardedModel that it belonged to has ended. "
    "ShardedModel::unwrap() "
    "ends one and leaves the module its values";

[[noreturn]] void refuse_lent(const std::string& parameter, bool has_ended) {
  if (has_ended) misuse("parameter {} {}", parameter, ended);
  misuse("parameter {} is sharded already: a module has one ShardedModel at a time", parameter);
}

void collect_modules_below(const nn::Module& module, std::set<const nn::Module*>& seen,
                           std::vector<std::shared_ptr<nn::Module>>& out) {
  for (const auto& [name, child] : module.children()) {
    if (!seen.insert(child.get()).second) continue;
    out.push_back(child);
    collect_modules_below(*child, seen, out);
  }
}

void check_dtypes(const ShardingOptions& options) {
  for (const std::optional<DType>& dtype : {options.param_dtype, options.reduce_dtype}) {
    TESSERA_CHECK(!dtype || is_floating(*dtype), ErrorCode::configuration,
                  "parameters and gradients cannot be {}", name_of(*dtype));
  }
}

}  // namespace

Runtime::Runtime(nn::Module& root, comm::Communicator& world, const ShardingOptions& options,
                 std::shared_ptr<nn::Module> owner)
    : owned_modules_{std::move(owner)},
      root_(&root),
      root_life_(root.life()),
      world_(&world),
      options_(options),
      row_(row_of(options.strategy)),
      device_(world.device()),
      world_size_(world.size()),
      rank_(world.rank()),
      stalls_(device_),
      self_(std::make_shared<Runtime*>(this)) {
  options_.offload = options_.offload.on(device_.stands_for());
  const IgnoredModules ignored(root, options_.ignored_modules, options_.ignored_pattern);
  std::vector<UnitPlan> plan = plan_units(root, options_, ignored);
  for (const UnitPlan& planned : plan) {
    const auto& hooks = planned.unit.module->hooks();
    TESSERA_REQUIRE(hooks == nullptr || hooks->owner == hooks_owner,
                    "module {} has the hooks of {}, given by set_hooks(), which sharding needs for "
                    "its own: use register_forward_hook()",
                    planned.unit.name, hooks->owner);
    TESSERA_REQUIRE(hooks == nullptr,
                    "module {} is sharded already: a module has one ShardedModel at a time",
                    planned.unit.name);
  }
  for (const UnitPlan& planned : plan) {
    for (const OwnedParameter& parameter : planned.unit.parameters) {
      const Storage& storage = *parameter.tensor.storage();
      if (storage.is_lent()) refuse_lent(parameter.name, storage.has_ended());
    }
  }
  compare_structures(world, options_, plan, ignored);  // first: if these differ, so does the rest
  std::vector<OwnedParameter> ignored_parameters = ignored.parameters();
  compare_values(plan, ignored_parameters);
  check_dtypes(options_);
  check_wires(options_);
  check_offload(options_.offload, device_.stands_for());
  shards_ = shards_of(options_, world_size_);
  reduction_group_ = reduction_group_of(options_, world_size_);
  reshard_after_backward_ = options_.reshard_after_backward;
  std::vector<std::string_view> names;
  for (const UnitPlan& planned : plan) names.push_back(planned.unit.name);
  check_reshard(options_, names, shards_);
  kept_ = std::make_unique<KeptPrecision>(root, options_, ignored, owned_modules_[0] != nullptr);
  ignored_ = std::make_unique<IgnoredParameters>(ignored_parameters, device_);
  ignored_->compare(world);
  connect(world);
  form_reshard_groups(plan);
  choose_recomputation(root, plan);
  create_files(plan);
  create_units(std::move(plan));
  gather_stream_ = std::make_unique<Stream>("gather", device_);
  reduce_stream_ = std::make_unique<Stream>("reduce", device_);
  if (sums_in_two_levels()) across_stream_ = std::make_unique<Stream>("all-reduce", device_);
  own_modules(root);
}

// Keeps alive the modules that hooks, casts and recomputation are set on, whatever their users do.
// Seals all of them: a parameter that is registered later would be in no unit.
void Runtime::own_modules(nn::Module& root) {
  std::set<const nn::Module*> seen{&root};
  collect_modules_below(root, seen, owned_modules_);
  no_registration_ = std::make_shared<const std::string>(
      "the model is sharded, and would neither average nor save it. Register before "
      "fully_shard(), or unwrap() the ShardedModel and shard again");
  root.forbid_registration(no_registration_);
  for (const auto& module : owned_modules_) {
    if (module) module->forbid_registration(no_registration_);
  }
}

void Runtime::compare_values(std::vector<UnitPlan>& plan, std::vector<OwnedParameter>& ignored) {
  if (!options_.sync_module_states) return compare_initial_values(*world_, plan);
  std::vector<OwnedParameter*> parameters;
  for (UnitPlan& planned : plan) {
    for (OwnedParameter& parameter : planned.unit.parameters) parameters.push_back(&parameter);
  }
  for (OwnedParameter& parameter : ignored) parameters.push_back(&parameter);
  sync_initial_values(*world_, parameters);
}

Runtime::~Runtime() {
  self_.reset();
  for (nn::Module* module : hooked_) module->set_hooks(nullptr);
  for (const auto& unit : units_) {
    for (const auto& storage : {unit->parameter_storage(), unit->gradient_storage()}) {
      if (!storage) continue;
      storage->set_on_missing(nullptr);
      storage->set_why_missing(ended);
    }
    for (const auto& parameter : unit->local_parameters()) {
      const auto& storage = parameter.tensor.storage();
      storage->set_on_write([title = unit_title(unit->name())](Storage::Write) {
        misuse(
            "a write to a local parameter of {}, whose ShardedModel has ended: no module would "
            "see it. Write to the module's parameters after unwrap(), or to parameters() of the "
            "model that is there now; to read, use a const Tensor or to_vector()",
            title);
      });
      storage->set_on_requires_grad(nullptr);
      storage->set_on_zero_grad(nullptr);
      storage->set_on_step([title = unit_title(unit->name())] {
        misuse(
            "step() of an optimizer whose ShardedModel has ended: its parameters of {} belong to "
            "no module. Make the optimizer from the parameters() of the model that is there now",
            title);
      });
    }
    // A rank that leaves in the middle of a pass must not make ranks wait that continue to their
    // own end.
    const UnitState& state = state_of(*unit);
    if (state.parameters == ParameterState::gathered && state.parameter_buffer)
      release_at_end(*state.parameter_buffer, unit_title(unit->name()));
    // The module may live on; the memory of its parameters does not.
    unit->parameter_storage()->set_on_write(nullptr);
    unit->parameter_storage()->set_on_requires_grad(nullptr);
    unit->parameter_storage()->detach();
    if (unit->gradient_storage()) unit->gradient_storage()->detach();
  }
  // Streams finish first; then buffers, then communicators.
  gather_stream_.reset();
  reduce_stream_.reset();  // it may wait for the gather stream
  across_stream_.reset();
  files_->finish();
}

void Runtime::connect(comm::Communicator& world) {
  replica_ = rank_ / shards_;
  gather_group_ = world.split_blocks(shards_, "gather");
  reduce_group_ = gather_group_->duplicate("reduce");
  control_ = gather_group_->duplicate("control");
  reduce_replicas_ = world.split_across_blocks(shards_, "replicas");
}

// Makes a group for each number of ranks that a unit is resharded to.
void Runtime::form_reshard_groups(const std::vector<UnitPlan>& plan) {
  whole_.ranks = gather_group_;
  for (const UnitPlan& planned : plan) {
    const int ranks = reshard_of(options_, planned.unit.name, shards_).ranks;
    if (ranks == 0 || resharded_.contains(ranks)) continue;
    resharded_[ranks].ranks =
        gather_group_->split_blocks(ranks, "gather from " + std::to_string(ranks));
  }
}

void Runtime::choose_recomputation(nn::Module& root, const std::vector<UnitPlan>& plan) {
  std::vector<UnitModule> units;
  for (const UnitPlan& planned : plan)
    units.push_back({planned.unit.name, planned.unit.module, {}});
  std::shared_ptr<ActivationOffload> offload;
  if (options_.activation_offload) {
    TESSERA_CHECK(options_.activation_checkpointing != ActivationCheckpointing::none,
                  ErrorCode::configuration, "activation_offload requires activation_checkpointing");
    TESSERA_CHECK(device_.stands_for() == DeviceType::cuda, ErrorCode::configuration,
                  "activation_offload is for GPUs: a CPU rank keeps activations in the host's "
                  "memory already; leave it out");
    offload = ActivationOffload::create(device_);
  }
  recomputed_ =
      std::make_unique<RecomputedModules>(choose_recomputed(root, units, options_),
                                          options_.activation_checkpointing, std::move(offload));
}

void Runtime::create_files(const std::vector<UnitPlan>& plan) {
  FileNeeds needs;
  if (options_.offload.uses_files() || options_.offload.uses_host()) {
    std::vector<UnitLayout> layouts;
    for (const UnitPlan& planned : plan) layouts.emplace_back(planned.specs, shards_);
    std::vector<PlannedUnit> units;
    for (std::size_t i = 0; i < plan.size(); ++i) units.push_back({plan[i].unit.name, &layouts[i]});
    needs = file_needs(units);
  }
  files_ = std::make_unique<OffloadFiles>(options_.offload, needs, rank_, device_);
}

void Runtime::create_units(std::vector<UnitPlan> plan) {
  states_.resize(plan.size());
  for (std::size_t i = 0; i < plan.size(); ++i) {
    // Its original parameters are freed as soon as the unit has its shard of them.
    const UnitPlan planned = std::move(plan[i]);
    units_.push_back(std::make_unique<Unit>(planned.unit.name, static_cast<int>(i),
                                            planned.unit.parameters, planned.specs, shards_,
                                            gather_group_->rank(), *files_));
    Unit& unit = *units_.back();
    states_[i].reshard = reshard_of(options_, unit.name(), shards_);
    find_ranges(unit);
    if (unit.has_gradient()) unit.create_gradient_views(gradient_dtype_of(unit.layout(), options_));
    if (unit.computes_on_master()) states_[i].parameters = ParameterState::gathered;
    watch_storages(unit);
    if (!unit.is_root() && !unit.layout().slots().empty()) {
      create_hooks(*planned.unit.module, unit);
    }
  }
}

void Runtime::find_ranges(Unit& unit) {
  UnitState& state = state_of(unit);
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

void Runtime::create_hooks(nn::Module& module, Unit& unit) {
  // A graph keeps the hooks of its calls, and may live longer than this object.
  const auto hook = [this, &unit](void (Runtime::*method)(Unit&, const ModuleCall&)) {
    return [self = std::weak_ptr<Runtime*>(self_), &unit, method,
            title = unit_title(unit.name())](const ModuleCall& call) {
      const std::shared_ptr<Runtime*> runtime = self.lock();
      TESSERA_REQUIRE(
          runtime, "the graph goes through {}, whose ShardedModel has ended: run backward before",
          title);
      ((*runtime)->*method)(unit, call);
    };
  };
  auto hooks = std::make_shared<ModuleHooks>();
  hooks->owner = hooks_owner;
  hooks->before_forward = hook(&Runtime::before_forward);
  hooks->after_forward = hook(&Runtime::after_forward);
  hooks->abandon_forward = [self = std::weak_ptr<Runtime*>(self_), &unit](const ModuleCall& call) {
    if (const std::shared_ptr<Runtime*> runtime = self.lock()) {
      (*runtime)->abandon_forward(unit, call);
    }
  };
  hooks->expect_backward = hook(&Runtime::expect_backward);
  hooks->before_backward = hook(&Runtime::before_backward);
  hooks->after_backward = hook(&Runtime::after_backward);
  module.set_hooks(std::move(hooks));
  hooked_.push_back(&module);
}

void Runtime::watch_storages(Unit& unit) {
  const auto& parameters = unit.parameter_storage();
  // The root's own forward may be called without hooks (net.forward(x)): its parameters are
  // gathered when a computation first needs them.
  if (unit.is_root()) parameters->set_on_missing([this] { use_root(); });
  parameters->set_on_write([this, &unit](Storage::Write) {
    if (writing_) return;
    misuse(
        "the gathered parameters of {} are a copy that is only read; write inside "
        "ShardedModel::write_unsharded(), or to the local tensors of ShardedModel::parameters()",
        unit_title(unit.name()));
  });
  parameters->set_on_requires_grad(
      [this, &unit](const detail::TensorData& tensor) { toggle_requires_grad(unit, tensor); });
  if (unit.has_gradient()) {
    // For other units, this lends memory only for gradients that arrive outside of their own
    // backward.
    unit.gradient_storage()->set_on_missing([this, &unit] { lend_gradient(unit); });
  }
  watch_masters(unit);
}

void Runtime::watch_masters(Unit& unit) {
  for (std::size_t i = 0; i < unit.local_parameters().size(); ++i) {
    const bool trainable = unit.layout().slots()[i].spec.trainable;
    const auto& storage = unit.local_parameters()[i].tensor.storage();
    storage->set_on_write(
        [this, &unit, trainable](Storage::Write how) { invalidate(unit, trainable, how); });
    storage->set_on_step([this, &unit] { before_step(unit); });
    storage->set_on_zero_grad(
        [this, &unit](const detail::TensorData& tensor) { drop_local_sum(unit, tensor); });
    storage->set_on_requires_grad(
        [this, &unit](const detail::TensorData& tensor) { toggle_requires_grad(unit, tensor); });
  }
}

CommunicationStatistics Runtime::statistics() const {
  CommunicationStatistics result = statistics_;
  result.exposed_seconds = stalls_.seconds();
  result.busy_seconds = gather_stream_->busy_seconds() + reduce_stream_->busy_seconds();
  if (across_stream_) result.busy_seconds += across_stream_->busy_seconds();
  // A group inside a node sends nothing to other nodes; a group that spans nodes counts for all.
  result.bytes_between_hosts =
      std::max(gather_group_->bytes_between_hosts(), reduce_replicas_->bytes_between_hosts());
  return result;
}

const std::shared_ptr<StepRecorder>& Runtime::record() {
  if (recorder_) return recorder_;
  // Work that is still in side streams reads recorder_.
  gather_stream_->synchronize();
  reduce_stream_->synchronize();
  if (across_stream_) across_stream_->synchronize();
  std::vector<std::string> names;
  for (const auto& unit : units_) names.push_back(unit->name());
  return recorder_ = std::make_shared<StepRecorder>(std::move(names), device_);
}

void Runtime::attempt(Stream& stream, std::function<void()> work) {
  const comm::RankWaits waits(*control_);
  stream.attempt(for_worker(std::move(work)));
}

void Runtime::join(const Event& event, Exposed what, const Unit& unit) {
  // On other devices, join() must also inform the queue and the log of a plan.
  if (device_.type == DeviceType::cpu && event.succeeded()) return;
  const comm::RankWaits waits(*control_);
  const ComputeScope wait(recorder_.get(), SpanKind::wait, unit.index(), what);
  stalls_.join(event);
}

}  // namespace tessera

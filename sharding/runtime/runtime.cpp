#include "sharding/runtime/runtime.h"

#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/memory/wires.h"
#include "sharding/units/equal_values.h"

namespace tessera {
namespace {

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

}  // namespace

Runtime::Runtime(nn::Module& root, comm::Communicator& world, const ShardingOptions& options,
                 std::shared_ptr<nn::Module> owner)
    : owned_modules_{std::move(owner)},
      root_(&root),
      root_life_(root.life()),
      world_(&world),
      options_(options),
      device_(world.device()) {
  options_.offload = options_.offload.on(device_.stands_for());
  const IgnoredModules ignored(root, options_.ignored_modules, options_.ignored_pattern);
  std::vector<UnitPlan> plan = plan_units(root, options_, ignored);
  check(plan, ignored);
  std::vector<OwnedParameter> ignored_parameters = ignored.parameters();
  compare_values(plan, ignored_parameters);
  check_options(plan);
  kept_ = std::make_unique<KeptPrecision>(root, options_, ignored, owned_modules_[0] != nullptr);
  ignored_ = std::make_unique<IgnoredParameters>(ignored_parameters, device_);
  ignored_->compare(world);
  buffers_ = std::make_unique<ModuleBuffers>(root, world, options_.sync_module_states);
  create_groups(plan);
  choose_recomputation(root, plan);
  create_files(plan);
  std::vector<nn::Module*> modules;
  for (const UnitPlan& planned : plan) modules.push_back(planned.unit.module);
  create_units(std::move(plan));
  create_parts();
  create_peers();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    Unit& unit = *units_[i];
    watch_storages(unit);
    if (!unit.is_root() && !unit.layout().slots().empty()) schedule_->add_hooks(*modules[i], unit);
  }
  own_modules(root);
}

void Runtime::check(const std::vector<UnitPlan>& plan, const IgnoredModules& ignored) const {
  for (const UnitPlan& planned : plan) {
    const auto& hooks = planned.unit.module->hooks();
    TESSERA_REQUIRE(hooks == nullptr || hooks->owner == Schedule::hooks_owner,
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
  // If these differ, so does the rest.
  compare_structures(*world_, options_, plan, ignored, describe_buffers(*root_));
}

void Runtime::check_options(const std::vector<UnitPlan>& plan) const {
  for (const std::optional<DType>& dtype : {options_.param_dtype, options_.reduce_dtype}) {
    TESSERA_CHECK(!dtype || is_floating(*dtype), ErrorCode::configuration,
                  "parameters and gradients cannot be {}", name_of(*dtype));
  }
  check_wires(options_);
  check_offload(options_.offload, device_.stands_for());
  const int shards = shards_of(options_, world_->size());
  check_defer_replica_sums(options_, shards);
  (void)reduction_group_of(options_, world_->size());  // it checks the option
  std::vector<std::string_view> names;
  for (const UnitPlan& planned : plan) names.push_back(planned.unit.name);
  check_reshard(options_, names, shards);
}

void Runtime::create_groups(const std::vector<UnitPlan>& plan) {
  const int shards = shards_of(options_, world_->size());
  std::vector<int> reshard_ranks;
  for (const UnitPlan& planned : plan)
    reshard_ranks.push_back(reshard_of(options_, planned.unit.name, shards).ranks);
  groups_ = std::make_unique<ProcessGroups>(*world_, shards, reshard_ranks);
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
    for (const UnitPlan& planned : plan) layouts.emplace_back(planned.specs, groups_->shards());
    std::vector<PlannedUnit> units;
    for (std::size_t i = 0; i < plan.size(); ++i) units.push_back({plan[i].unit.name, &layouts[i]});
    needs = file_needs(units);
  }
  files_ = std::make_unique<OffloadFiles>(options_.offload, needs, groups_->rank(), device_);
}

namespace {

// A forward or an optimizer that still has a handle of an original parameter would train nothing,
// in silence: the handle loses its memory, and an error says why.
void end_original(const OwnedParameter& parameter) {
  const Tensor& tensor = parameter.tensor;
  const std::shared_ptr<Storage> none =
      Storage::lent(tensor.bytes(), tensor.device(), "parameter " + parameter.name);
  none->set_why_missing(
      "was replaced by fully_shard(); read it with Module::parameter(), and make the optimizer "
      "from ShardedModel::parameters()");
  tensor.impl()->storage = none;
  tensor.impl()->offset = 0;
}

}  // namespace

void Runtime::create_units(std::vector<UnitPlan> plan) {
  for (std::size_t i = 0; i < plan.size(); ++i) {
    // Its original parameters are freed as soon as the unit has its shard of them.
    const UnitPlan planned = std::move(plan[i]);
    units_.push_back(std::make_unique<Unit>(planned.unit.name, static_cast<int>(i),
                                            planned.unit.parameters, planned.specs,
                                            groups_->shards(), groups_->gather().rank(), *files_));
    if (device_.type == DeviceType::planned) continue;  // a plan gives the module its own again
    for (const OwnedParameter& parameter : planned.unit.parameters) end_original(parameter);
  }
}

void Runtime::create_parts() {
  streams_ = std::make_unique<SideStreams>(device_, *groups_);
  calls_ = std::make_unique<OpenCalls>(units_.size());
  gatherer_ = std::make_unique<ParameterGatherer>(options_, *groups_, units_, *calls_, *streams_);
  reducer_ = std::make_unique<GradientReducer>(options_, *groups_, units_, *streams_);
  changes_ = std::make_unique<RequiresGradChanges>(units_, *world_);
  schedule_ = std::make_unique<Schedule>(options_, units_, *calls_, *gatherer_, *reducer_,
                                         *changes_, *streams_);
  writer_ = std::make_unique<UnshardedWriter>(units_, *groups_, *gatherer_);
}

// Ranks with a whole copy each are peers of all; replicas of a group compute alike.
void Runtime::create_peers() {
  comm::Communicator& ranks = groups_->shards() == 1 ? groups_->world() : groups_->control();
  peers_ = std::make_shared<UnitPeers>(ranks, [this] { return recorder(); });
  for (const auto& unit : units_) {
    peers_->add(*unit);
    for (const nn::NamedParameter& parameter : unit->local_parameters()) {
      if (parameter.tensor.requires_grad()) parameter.tensor.storage()->edit_shard().peers = peers_;
    }
  }
}

void Runtime::watch_storages(Unit& unit) {
  StorageObserver parameters;
  // The root's own forward may be called without hooks (net.forward(x)): its parameters are
  // gathered when a computation first needs them.
  if (unit.is_root()) parameters.on_missing = [this] { schedule_->use_root(); };
  parameters.on_write = [this, &unit](Storage::Write) {
    if (writer_->is_writing()) return;
    misuse(
        "the gathered parameters of {} are a copy that is only read; write inside "
        "ShardedModel::write_unsharded(), or to the local tensors of ShardedModel::parameters()",
        unit_title(unit.name()));
  };
  parameters.on_requires_grad = [this, &unit](const detail::TensorData& tensor) {
    toggle_requires_grad(unit, tensor);
  };
  unit.parameter_storage()->set_observer(std::move(parameters));
  if (unit.has_gradient()) {
    // For other units, this lends memory only for gradients that arrive outside of their own
    // backward.
    unit.gradient_storage()->set_observer(
        {.on_missing = [this, &unit] { schedule_->attach_gradient(unit); }});
  }
  watch_masters(unit);
}

void Runtime::watch_masters(Unit& unit) {
  for (std::size_t i = 0; i < unit.local_parameters().size(); ++i) {
    const bool trainable = unit.layout().slots()[i].spec.trainable;
    StorageObserver master;
    master.on_write = [this, &unit, trainable](Storage::Write how) {
      gatherer_->invalidate(unit, trainable, how);
    };
    master.on_step = [this, &unit](double learning_rate) {
      reducer_->before_step(unit);
      unit.set_learning_rate(learning_rate);
    };
    master.on_zero_grad = [this, &unit](const detail::TensorData& tensor) {
      reducer_->drop_sums(unit, tensor);
      reducer_->discard_gradient(unit);
    };
    master.on_requires_grad = [this, &unit](const detail::TensorData& tensor) {
      toggle_requires_grad(unit, tensor);
    };
    unit.local_parameters()[i].tensor.storage()->set_observer(std::move(master));
  }
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
  schedule_->remove_hooks();
  for (const auto& unit : units_) stop_watching(*unit);
  gatherer_->release_at_end();
  for (const auto& unit :
       units_) {  // the module may live on; the memory of its parameters does not
    unit->parameter_storage()->detach();
    if (unit->gradient_storage()) unit->gradient_storage()->detach();
  }
  // Streams finish first; then buffers, then communicators.
  streams_->end();
  files_->finish();
}

void Runtime::stop_watching(const Unit& unit) const {
  for (const auto& storage : {unit.parameter_storage(), unit.gradient_storage()}) {
    if (!storage) continue;
    storage->set_observer({});
    storage->set_why_missing(ended);
  }
  for (const auto& parameter : unit.local_parameters()) {
    StorageObserver refusal;
    refusal.on_write = [title = unit_title(unit.name())](Storage::Write) {
      misuse(
          "a write to a local parameter of {}, whose ShardedModel has ended: no module would "
          "see it. Write to the module's parameters after unwrap(), or to parameters() of the "
          "model that is there now; to read, use a const Tensor or to_vector()",
          title);
    };
    refusal.on_step = [title = unit_title(unit.name())](double /*learning_rate*/) {
      misuse(
          "step() of an optimizer whose ShardedModel has ended: its parameters of {} belong to "
          "no module. Make the optimizer from the parameters() of the model that is there now",
          title);
    };
    parameter.tensor.storage()->set_observer(std::move(refusal));
  }
}

BufferPlan Runtime::plan(bool no_sync) const {
  std::vector<PlannedUnit> units;
  for (const auto& unit : units_) units.push_back({unit->name(), &unit->layout()});
  const PlannedWorld world{.size = groups_->world_size(),
                           .device = device_,
                           .nccl = !groups_->gather().one_memory(),
                           .over_hosts = groups_->across().ranks_per_host() > 0,
                           .fixed_order = groups_->gather().fixed_order()};
  return buffer_plan(units, options_, world, no_sync, ignored_->bytes() + buffers_->bytes());
}

void Runtime::allocate() {
  for (const PlannedBuffer& planned : plan(false).buffers) {
    for (int i = 0; i < planned.count; ++i) {
      gatherer_->allocate(planned);
      reducer_->allocate(planned);
    }
  }
}

void Runtime::allocate_local_sums() {
  if (has_local_sums_) return;
  for (const PlannedBuffer& planned : plan(true).buffers) {
    const bool is_new = planned.use == BufferUse::local_sum ||
                        planned.use == BufferUse::reduce_scratch ||
                        planned.use == BufferUse::replicas_scratch;
    for (int i = 0; is_new && i < planned.count; ++i) reducer_->allocate(planned);
  }
  has_local_sums_ = true;
}

CommunicationStatistics Runtime::statistics() const {
  CommunicationStatistics all = streams_->statistics();
  all.bytes += peers_->received_bytes();
  return all;
}

const std::shared_ptr<StepRecorder>& Runtime::record() {
  const std::vector<std::string_view> names = unit_names();
  return streams_->record({names.begin(), names.end()});
}

std::vector<std::string_view> Runtime::unit_names() const {
  std::vector<std::string_view> names;
  for (const auto& unit : units_) names.push_back(unit->name());
  return names;
}

}  // namespace tessera

// Setting the schedule up: groups of ranks, units, hooks.
#include "sharding/runtime.h"

#include <bit>
#include <cstdio>
#include <exception>

#include "kernels/base/error.h"

namespace tessera {
namespace {

int shards_of(const StrategyRow& row, const ShardingOptions& options, int world_size) {
  switch (row.shards) {
    case ShardGroup::self:
      return 1;
    case ShardGroup::world:
      return world_size;
    case ShardGroup::group:
      break;
  }
  TESSERA_CHECK(options.group_size > 0 && world_size % options.group_size == 0,
                ErrorCode::configuration,
                "{} needs a group_size that divides the world of {} ranks, got {}", row.name,
                world_size, options.group_size);
  return options.group_size;
}

// The first level of the summation tree; refuses a group whose sum would not be a subtree.
int reduction_group_of(const StrategyRow& row, int requested, int shards, int world_size) {
  TESSERA_CHECK(requested >= 0 && (requested == 0 || world_size % requested == 0),
                ErrorCode::configuration,
                "reduction_group {} does not divide the world of {} ranks", requested, world_size);
  if (row.shards != ShardGroup::group || shards == world_size || shards == 1) return requested;
  const bool power = std::has_single_bit(static_cast<unsigned>(shards));
  if (requested == 0) return power ? 0 : shards;
  const bool above = power && requested % shards == 0;
  const bool below =
      shards % requested == 0 && std::has_single_bit(static_cast<unsigned>(shards / requested));
  TESSERA_CHECK(above || below, ErrorCode::configuration,
                "reduction_group {} and group_size {} sum gradients in different orders; use "
                "reduction_group {}",
                requested, shards, shards);
  return requested;
}

DType compute_dtype_of(const Tensor& parameter, const ShardingOptions& options) {
  const bool cast = is_floating(parameter.dtype()) && options.param_dtype.has_value();
  return cast ? *options.param_dtype : parameter.dtype();
}

// Of a unit whose runtime ends. Nothing may leave a destructor: a GPU that has failed says so here
// as well as to whoever waits for it.
void release_at_end(comm::Buffer& buffer, const std::string& unit) {
  try {
    buffer.release();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "releasing the parameters of unit '%s': %s\n", unit.c_str(), error.what());
  }
}

DType master_dtype_of(const Tensor& parameter) {
  const bool low = parameter.dtype() == bfloat16 || parameter.dtype() == float16;
  return low ? float32 : parameter.dtype();
}

}  // namespace

Runtime::Runtime(nn::Module& root, comm::Communicator& world, const ShardingOptions& options)
    : options_(options),
      row_(row_of(options.strategy)),
      device_(world.device()),
      world_size_(world.size()),
      stalls_(device_) {
  shards_ = shards_of(row_, options_, world_size_);
  reduction_group_ = reduction_group_of(row_, options_.reduction_group, shards_, world_size_);
  for (const auto dtype : {options_.param_dtype, options_.reduce_dtype}) {
    TESSERA_CHECK(!dtype || is_floating(*dtype), ErrorCode::configuration,
                  "parameters and gradients cannot be {}", name_of(*dtype));
  }
  connect(world);
  create_units(root);
  gather_stream_ = std::make_unique<Stream>("gather", device_);
  reduce_stream_ = std::make_unique<Stream>("reduce", device_);
}

Runtime::~Runtime() {
  for (nn::Module* module : hooked_) module->set_hooks(nullptr);
  for (const auto& unit : units_) {
    unit->parameter_storage()->set_on_missing(nullptr);
    if (unit->gradient_storage()) unit->gradient_storage()->set_on_missing(nullptr);
    for (const auto& parameter : unit->local_parameters())
      parameter.tensor.storage()->set_on_write(nullptr);
    // A rank that leaves in the middle of a pass must not be waited for by those that go on to
    // their own end.
    if (unit->state == ParameterState::unsharded && unit->parameter_buffer)
      release_at_end(*unit->parameter_buffer, unit->name());
    // The module may live on; what its parameters pointed into does not.
    unit->parameter_storage()->set_on_write(nullptr);
    unit->parameter_storage()->detach();
    if (unit->gradient_storage()) unit->gradient_storage()->detach();
  }
  // Streams finish first; then buffers, then communicators.
  gather_stream_.reset();
  reduce_stream_.reset();
}

void Runtime::connect(comm::Communicator& world) {
  const int rank = world.rank();
  const int shard = rank % shards_;
  replica_ = rank / shards_;
  gather_group_ = world.split(replica_, rank, "gather");
  reduce_group_ = gather_group_->duplicate("reduce");
  control_ = gather_group_->duplicate("control");
  reduce_replicas_ = world.split(shard, rank, "replicas");
}

void Runtime::create_units(nn::Module& root) {
  const std::vector<UnitModule> modules = choose_units(root, options_.wrap);
  for (const UnitModule& unit : modules) {
    TESSERA_REQUIRE(unit.module->hooks() == nullptr,
                    "module {} is sharded already: a module has one ShardedModel at a time",
                    unit.name);
  }
  const auto owned = assign_parameters(root, modules);
  for (std::size_t i = 0; i < modules.size(); ++i) {
    std::vector<ParameterSpec> specs;
    for (const auto& parameter : owned[i]) {
      specs.push_back({parameter.name, parameter.shape, master_dtype_of(parameter.tensor),
                       compute_dtype_of(parameter.tensor, options_),
                       parameter.tensor.requires_grad()});
    }
    units_.push_back(std::make_unique<Unit>(modules[i].name, static_cast<int>(i), root, owned[i],
                                            specs, shards_, gather_group_->rank(), device_));
    Unit& unit = *units_.back();
    if (unit.has_gradient()) {
      DType widest = DType::bfloat16;
      for (const auto& segment : unit.layout().segments()) {
        if (segment.trainable && size_of(segment.compute_dtype) >= size_of(widest))
          widest = segment.compute_dtype;
      }
      unit.create_gradient_views(options_.reduce_dtype.value_or(widest));
    }
    watch_storages(unit);
    if (shares_pool(unit)) {
      pool_parameter_bytes_ = std::max(pool_parameter_bytes_, unit.layout().bytes());
    }
    if (!unit.is_root() && !unit.layout().slots().empty()) {
      create_hooks(*modules[i].module, unit);
      pool_gradient_bytes_ =
          std::max(pool_gradient_bytes_, unit.has_gradient() ? unit.gradient_buffer_bytes() : 0);
    }
  }
}

void Runtime::create_hooks(nn::Module& module, Unit& unit) {
  auto hooks = std::make_shared<ModuleHooks>();
  hooks->before_forward = [this, &unit] { before_forward(unit); };
  hooks->after_forward = [this, &unit] { after_forward(unit); };
  hooks->before_backward = [this, &unit] { before_backward(unit); };
  hooks->after_backward = [this, &unit] { after_backward(unit); };
  module.set_hooks(std::move(hooks));
  hooked_.push_back(&module);
}

void Runtime::watch_storages(Unit& unit) {
  // The root's own forward may be called without hooks (net.forward(x)): its parameters come when
  // they are first used.
  if (unit.is_root()) {
    unit.parameter_storage()->set_on_missing([this, &unit] { before_forward(unit); });
  }
  unit.parameter_storage()->set_on_write([&unit] {
    misuse(
        "the gathered parameters of {} are a copy that is only read; write to the local tensors of "
        "ShardedModel::parameters()",
        unit.name().empty() ? "the root unit" : "unit " + unit.name());
  });
  if (unit.has_gradient()) {
    unit.gradient_storage()->set_on_missing([this, &unit] { provide_gradient(unit); });
  }
  for (const auto& parameter : unit.local_parameters()) {
    parameter.tensor.storage()->set_on_write([this] { invalidate(); });
  }
}

bool Runtime::shares_pool(const Unit& unit) const {
  return !unit.is_root() && row_.unsharded == Unsharded::per_pass && !unit.computes_on_master();
}

CommunicationStatistics Runtime::statistics() const {
  CommunicationStatistics result = statistics_;
  result.exposed_seconds = stalls_.seconds();
  result.busy_seconds = gather_stream_->busy_seconds() + reduce_stream_->busy_seconds();
  return result;
}

void Runtime::count_buffer(const comm::Buffer& buffer) {
  ++statistics_.buffers;
  statistics_.buffer_bytes += buffer.bytes();
}

Event Runtime::enqueue(Stream& stream, std::function<void()> work) {
  return stream.enqueue([this, work = std::move(work)] {
    const comm::WorkerScope scope(*control_);
    work();
  });
}

void Runtime::run(Stream& stream, std::function<void()> work) {
  const Event done = enqueue(stream, std::move(work));
  const comm::RankWaits waits(*control_);
  done.wait();
}

void Runtime::join(const Event& event) {
  const comm::RankWaits waits(*control_);
  stalls_.join(event);
}

}  // namespace tessera

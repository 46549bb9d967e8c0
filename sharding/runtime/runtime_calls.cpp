// The calls of a sharded model's user.
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/runtime/runtime.h"

namespace tessera {

Unit& Runtime::unit_named(std::string_view name) {
  for (const auto& unit : units_) {
    if (unit->name() == name) return *unit;
  }
  std::string names;
  for (const auto& unit : units_) {
    if (!unit->is_root()) names += (names.empty() ? "" : ", ") + unit->name();
  }
  misuse("no unit is called {}; units are the root, which is \"\", {}", name,
         names.empty() ? "and no others" : "and " + names);
}

void Runtime::begin_no_sync() {
  using Sync = GradientReducer::Sync;
  TESSERA_REQUIRE(reducer_->sync() != Sync::not_in_scope,
                  "no_sync() inside the scope of another no_sync(): one scope is enough. Leave out "
                  "the inner one, or end the outer one before");
  TESSERA_REQUIRE(reducer_->sync() != Sync::not_by_hand,
                  "no_sync after set_requires_gradient_sync(false), which does the same: use one "
                  "of them");
  allocate_local_sums();
  reducer_->set_sync(Sync::not_in_scope);
}

void Runtime::set_requires_gradient_sync(bool sync) {
  using Sync = GradientReducer::Sync;
  TESSERA_REQUIRE(!autograd::in_backward(),
                  "set_requires_gradient_sync in the middle of a backward: some of its gradients "
                  "are reduced already; call it before");
  TESSERA_REQUIRE(reducer_->sync() != Sync::not_in_scope,
                  "set_requires_gradient_sync inside a no_sync() scope, which does the same: use "
                  "one of them");
  if (!sync) allocate_local_sums();
  reducer_->set_sync(sync ? Sync::every_backward : Sync::not_by_hand);
}

void Runtime::set_requires_all_reduce(bool all_reduce) {
  TESSERA_REQUIRE(options_.defer_replica_sums,
                  "set_requires_all_reduce without ShardingOptions::defer_replica_sums, which "
                  "allocates the memory of sums that stay in a group: set it in fully_shard()");
  TESSERA_REQUIRE(!autograd::in_backward(),
                  "set_requires_all_reduce in the middle of a backward: some of its gradients are "
                  "reduced already; call it before");
  reducer_->set_sums_across(all_reduce);
}

void Runtime::unshard(std::string_view name, bool async_op) {
  Unit& unit = unit_named(name);
  const ComputeScope own(recorder(), SpanKind::schedule, unit.index());
  gatherer_->unshard_ahead(unit,
                           autograd::in_backward() ? comm::Phase::backward : comm::Phase::forward);
  if (!async_op) gatherer_->wait_for_unshard(unit);
}

void Runtime::reshard(std::string_view name) {
  Unit& unit = unit_named(name);
  const std::string title = unit_title(name);
  TESSERA_REQUIRE(!gatherer_->keeps_all(),
                  "reshard of {} inside an unsharded(model) scope, which keeps it", title);
  TESSERA_REQUIRE(!calls_->in_use(unit),
                  "reshard of {} in the middle of its {}: its parameters are in use", title,
                  calls_->of(unit).forwards > 0 ? "forward" : "backward");
  if (unit.is_root()) {  // its own forward has no hooks
    TESSERA_REQUIRE(!calls_->any_forward() && !autograd::in_backward(),
                    "reshard of the root unit in the middle of a {}: its parameters are in use",
                    autograd::in_backward() ? "backward" : "forward");
  }
  const ComputeScope own(recorder(), SpanKind::schedule, unit.index());
  gatherer_->reshard(unit);
}

void Runtime::set_reshard_after_backward(bool reshards) {
  TESSERA_REQUIRE(!autograd::in_backward(),
                  "set_reshard_after_backward in the middle of a backward: some of its units are "
                  "freed already; call it before");
  ShardingOptions asked = options_;
  asked.reshard_after_backward = reshards;
  check_reshard(asked, unit_names(), groups_->shards());
  gatherer_->set_reshard_after_backward(reshards);
}

void Runtime::toggle_requires_grad(Unit& unit, const detail::TensorData& tensor) {
  changes_->toggle(unit, tensor, autograd::in_backward() || calls_->any_forward());
}

void Runtime::unwrap() {
  TESSERA_REQUIRE(
      !(autograd::in_backward() || gatherer_->keeps_all() || calls_->any()),
      "unwrap() in the middle of a forward or a backward, or inside an unsharded(model) "
      "scope: its parameters are in use");
  TESSERA_REQUIRE(!root_life_.expired(), "unwrap(): the module has gone already");
  std::map<const detail::TensorData*, Tensor> whole;
  for (const auto& unit : units_) {
    std::vector<Tensor> values = gather_masters(*unit, *groups_, *streams_);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i].impl()->requires_grad = unit->local_parameters()[i].tensor.requires_grad();
      whole.emplace(unit->views()[i].impl().get(), std::move(values[i]));
    }
  }
  std::vector<nn::Module*> modules{root_};
  for (const auto& module : owned_modules_) modules.push_back(module.get());
  for (nn::Module* const module : modules) {
    if (module == nullptr) continue;
    std::vector<Tensor> views = module->parameters_read();
    for (const auto& [name, tensor] : module->own_parameters()) views.push_back(tensor);
    for (const Tensor& view : views) {
      const auto found = whole.find(view.impl().get());
      if (found != whole.end()) module->replace_own_parameter(view, found->second);
    }
  }
}

}  // namespace tessera

// Finds the pruned weights among a rank's shards, and writes zeros into them.
#include "trainer/pruning/pruner.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "comm/communicator.h"
#include "engine/autograd.h"
#include "engine/device/memory_kind.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

std::vector<float> host_values(const Tensor& tensor) {
  const MemoryScope kind(MemoryKind::other);
  const Tensor on_host = tensor.to(Device::cpu());
  const auto* values = on_host.data_as<float>();
  return {values, values + on_host.elements()};
}

const ShardedParameter& find_weight(const std::vector<ShardedParameter>& parameters,
                                    const std::string& name) {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const auto& parameter) { return parameter.name == name; });
  TESSERA_CHECK(found != parameters.end(), ErrorCode::configuration,
                "pruning: the model has no weight called {}", name);
  TESSERA_CHECK(found->trainable && found->local.dtype() == float32, ErrorCode::configuration,
                "pruning: {} is not trained, or not in fp32", name);
  TESSERA_CHECK(found->shape.dimensions() == 2, ErrorCode::configuration,
                "pruning: {} of shape {} is not a matrix", name, found->shape.to_string());
  return *found;
}

WatchedLayer find_layer(const std::vector<std::pair<std::string, nn::Module*>>& modules,
                        const std::string& weight) {
  for (const auto& [name, module] : modules) {
    auto* layer = dynamic_cast<nn::LinearImpl*>(module);
    if (layer != nullptr && name + ".weight" == weight) return {name, layer};
  }
  fail(ErrorCode::configuration,
       "pruning: {} is not the weight of a linear layer, so the norms of its inputs are not known",
       weight);
}

}  // namespace

Pruner::Pruner(PruningOptions options, const ShardedModel& model, nn::Module& module)
    : options_(std::move(options)) {
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  const auto modules = module.named_modules();
  const PruneMethod method = options_.method;
  for (const PrunedWeight& weight : options_.weights) {
    const ShardedParameter& found = find_weight(parameters, weight.name);
    const std::int64_t inputs = found.shape[weight.in_first ? 0 : 1];
    TESSERA_CHECK(!is_two_four(method) || inputs % 4 == 0, ErrorCode::configuration,
                  "pruning 2:4: {} has {} inputs, which are no groups of four", weight.name,
                  inputs);
    weights_.push_back(found.local);
    elements_.push_back(found.shape.elements());
    layouts_.push_back({.stride = weight.in_first ? found.shape[1] : 1,
                        .size = method == PruneMethod::wanda ? inputs : 4});
    if (weighs_inputs(method)) layers_.push_back(find_layer(modules, weight.name));
    runs_.push_back({.first = found.first,
                     .size = found.local.elements(),
                     .save_first = found.first + found.save_first,
                     .save_count = found.save_count,
                     .values = [local = found.local] { return host_values(local); }});
  }
}

// The memory is that of later steps from the first one on, so that a plan of two steps has it.
void Pruner::begin_step(std::int64_t step) {
  const NoGradGuard no_grad;
  const MemoryScope kind(MemoryKind::other);
  kept_.clear();
  for (const Tensor& weight : weights_) {
    kept_.push_back(keeps_zeros(step)
                        ? not_equal(weight, 0.0)
                        : Tensor::empty(weight.shape(), DType::boolean, weight.device()));
  }
}

void Pruner::end_step(std::int64_t step) {
  const NoGradGuard no_grad;
  const MemoryScope kind(MemoryKind::other);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const Tensor zero = Tensor::zeros({1}, float32, weights_[i].device());
    if (keeps_zeros(step)) {
      weights_[i].copy_from(where(kept_[i], weights_[i], zero));
    } else {
      (void)Tensor::empty(weights_[i].shape(), float32, weights_[i].device());
    }
  }
  kept_.clear();
}

std::vector<std::int64_t> Pruner::zeros_of_groups(double sparsity) const {
  std::vector<std::int64_t> zeros;
  for (const GroupLayout& layout : layouts_) {
    const double wanted = sparsity * static_cast<double>(layout.size);
    zeros.push_back(is_two_four(options_.method) ? static_cast<std::int64_t>(std::floor(wanted))
                                                 : std::llround(wanted));
  }
  return zeros;
}

std::vector<PrunedRun> Pruner::weighed_runs(const std::vector<std::vector<float>>& norms) const {
  std::vector<PrunedRun> weighed = runs_;
  for (std::size_t i = 0; i < weighed.size(); ++i) {
    const std::int64_t stride = layouts_[i].stride;
    weighed[i].values = [&run = runs_[i], &norm = norms[i], stride] {
      std::vector<float> values = run.values();
      const auto inputs = static_cast<std::int64_t>(norm.size());
      for (std::size_t k = 0; k < values.size(); ++k) {
        const std::int64_t input = (run.first + static_cast<std::int64_t>(k)) / stride % inputs;
        values[k] = std::abs(values[k]) * norm[static_cast<std::size_t>(input)];
      }
      return values;
    };
  }
  return weighed;
}

void Pruner::choose(std::int64_t step, const Context& context,
                    const std::function<void(std::int64_t batches)>& calibrate) {
  if (!options_.chooses_after(step) || context.device().is_planned()) return;
  const NoGradGuard no_grad;
  const double sparsity = options_.sparsity_after(step);
  const comm::Tag tag{static_cast<std::uint64_t>(step), 0, comm::Phase::metrics};
  const RankExchange exchange = [&](std::string_view text) {
    return context.communicator().exchange(text, tag);
  };
  const auto use = [&](std::size_t run, const std::vector<std::uint8_t>& chosen) {
    const MemoryScope kind(MemoryKind::other);
    Tensor& weight = weights_[run];
    const Tensor mask = Tensor::from(chosen, weight.shape()).to(weight.device());
    weight.copy_from(masked_fill(weight, mask, 0));
  };
  const bool weighs = weighs_inputs(options_.method);
  if (!weighs && !is_two_four(options_.method)) return choose_by_magnitude(sparsity, exchange, use);
  const std::vector<std::int64_t> zeros = zeros_of_groups(sparsity);
  if (std::all_of(zeros.begin(), zeros.end(), [](std::int64_t of_group) { return of_group == 0; }))
    return;
  if (!weighs) return choose_in_groups(runs_, layouts_, zeros, exchange, use);
  const std::vector<std::vector<float>> norms = input_norms(
      layers_, [&] { calibrate(options_.calibration_batches); }, exchange);
  choose_in_groups(weighed_runs(norms), layouts_, zeros, exchange, use);
}

void Pruner::choose_by_magnitude(
    double sparsity, const RankExchange& exchange,
    const std::function<void(std::size_t, std::vector<std::uint8_t>)>& use) {
  const auto count_of = [&](std::int64_t elements) {
    return static_cast<std::int64_t>(std::llround(sparsity * static_cast<double>(elements)));
  };
  std::vector<PrunedSet> sets;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    all += elements_[i];
    if (options_.method == PruneMethod::per_layer || sets.empty()) sets.emplace_back();
    sets.back().runs.push_back(i);
    sets.back().count = count_of(options_.method == PruneMethod::per_layer ? elements_[i] : all);
  }
  choose_smallest(runs_, sets, exchange, use);
}

}  // namespace tessera

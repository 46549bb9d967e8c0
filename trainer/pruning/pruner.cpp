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

}  // namespace

Pruner::Pruner(PruningOptions options, const ShardedModel& model) : options_(std::move(options)) {
  const std::vector<ShardedParameter> parameters = model.sharded_parameters();
  for (const PrunedWeight& weight : options_.weights) {
    const ShardedParameter& found = find_weight(parameters, weight.name);
    const std::int64_t inputs = found.shape[weight.in_first ? 0 : 1];
    TESSERA_CHECK(
        options_.method != PruneMethod::two_four || inputs % 4 == 0, ErrorCode::configuration,
        "pruning 2:4: {} has {} inputs, which are no groups of four", weight.name, inputs);
    weights_.push_back(found.local);
    elements_.push_back(found.shape.elements());
    layouts_.push_back({weight.in_first ? found.shape[1] : 1});
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

void Pruner::choose(std::int64_t step, const Context& context) {
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
  if (options_.method == PruneMethod::two_four) {
    const int zeros = static_cast<int>(std::floor(4 * sparsity));
    if (zeros > 0) choose_in_groups(runs_, layouts_, zeros, exchange, use);
    return;
  }
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

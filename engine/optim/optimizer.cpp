// What all optimizers share: parameters, state, step counts.
#include "engine/optim/optimizer.h"

#include "kernels/base/error.h"

namespace tessera::optim {

bool decay_matrices(const nn::NamedParameter& parameter) {
  return parameter.shape.dimensions() >= 2;
}

Optimizer::Optimizer(std::vector<nn::NamedParameter> parameters)
    : parameters_(std::move(parameters)), states_(parameters_.size()), steps_(parameters_.size()) {
  TESSERA_REQUIRE(!parameters_.empty(), "an optimizer needs parameters");
  for (const auto& [name, tensor, shape] : parameters_) {
    TESSERA_REQUIRE(
        tensor.dtype() == float32 || tensor.dtype() == float64,
        "optimizers update fp32 parameters; {} is {}: shard the module with param_dtype "
        "instead, which keeps fp32 masters",
        name, name_of(tensor.dtype()));
    TESSERA_REQUIRE(!tensor.storage()->is_lent(),
                    "parameter {} of a sharded module has no gradient of its own; make the "
                    "optimizer from ShardedModel::parameters()",
                    name);
  }
}

void Optimizer::step() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& data = parameters_[i].tensor.impl();
    if (!data->requires_grad || !data->grad_ready) continue;
    data->storage->will_write();
    ++steps_[i];
    update(i, parameters_[i].tensor, Tensor(data->grad), data->grad_scale, steps_[i]);
  }
}

void Optimizer::zero_grad() {
  for (auto& parameter : parameters_) parameter.tensor.zero_grad();
}

Tensor Optimizer::state(std::size_t index, const std::string& name) {
  Tensor& tensor = states_[index][name];
  if (!tensor) {
    const Tensor& parameter = parameters_[index].tensor;
    tensor = Tensor::zeros(parameter.shape(), parameter.dtype(), parameter.device());
  }
  return tensor;
}

void Optimizer::set_step_counts(std::vector<std::int64_t> counts) {
  TESSERA_REQUIRE(counts.size() == steps_.size(), "{} step counts for {} parameters", counts.size(),
                  steps_.size());
  steps_ = std::move(counts);
}

std::size_t Optimizer::state_bytes() const {
  std::size_t total = 0;
  for (const auto& states : states_) {
    for (const auto& [name, tensor] : states) total += tensor.bytes();
  }
  return total;
}

}  // namespace tessera::optim

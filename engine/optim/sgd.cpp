// Stochastic gradient descent with momentum.
#include "engine/launch.h"
#include "engine/optim/optimizer.h"
#include "kernels/base/error.h"

namespace tessera::optim {

Sgd::Sgd(std::vector<nn::NamedParameter> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  TESSERA_REQUIRE(options.lr >= 0 && options.momentum >= 0,
                  "Sgd: lr {} and momentum {} cannot be negative", options.lr, options.momentum);
  TESSERA_REQUIRE(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                  "Sgd: nesterov needs momentum and no dampening");
  set_learning_rate(options.lr);
}

std::vector<std::string> Sgd::state_names() const {
  if (options_.momentum == 0) return {};
  return {"momentum"};
}

void Sgd::update(std::size_t index, const Tensor& parameter, const Tensor& gradient,
                 float gradient_scale, std::int64_t step) {
  const bool decays = !options_.decay || options_.decay(parameters()[index]);
  const Tensor buffer = options_.momentum != 0 ? state(index, "momentum") : Tensor{};
  TESSERA_LAUNCH(parameter.device(), sgd_step,
                 {.param = parameter.data(),
                  .grad = gradient.data(),
                  .momentum_buffer = buffer ? buffer.data() : nullptr,
                  .copy = nullptr,
                  .n = parameter.elements(),
                  .dtype = parameter.dtype(),
                  .grad_dtype = gradient.dtype(),
                  .copy_dtype = parameter.dtype(),
                  .lr = learning_rate(),
                  .momentum = options_.momentum,
                  .dampening = options_.dampening,
                  .weight_decay = decays ? options_.weight_decay : 0.0,
                  .nesterov = options_.nesterov,
                  .first_step = step == 1,
                  .grad_scale = gradient_scale});
}

}  // namespace tessera::optim

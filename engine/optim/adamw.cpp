// AdamW.
#include <cmath>

#include "engine/launch.h"
#include "engine/optim/optimizer.h"
#include "kernels/base/error.h"

namespace tessera::optim {

AdamW::AdamW(std::vector<nn::NamedParameter> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters)), options_(options) {
  TESSERA_REQUIRE(options.lr >= 0 && options.eps >= 0 && options.beta1 >= 0 && options.beta1 < 1 &&
                      options.beta2 >= 0 && options.beta2 < 1,
                  "AdamW: lr {}, betas {} and {}, eps {}", options.lr, options.beta1, options.beta2,
                  options.eps);
  set_learning_rate(options.lr);
}

void AdamW::update(std::size_t index, const Tensor& parameter, const Tensor& gradient,
                   float gradient_scale, std::int64_t step) {
  const Tensor m = state(index, "exp_avg");
  const Tensor v = state(index, "exp_avg_sq");
  const bool decays = !options_.decay || options_.decay(parameters()[index]);
  const auto steps = static_cast<double>(step);
  TESSERA_LAUNCH(parameter.device(), adamw_step,
                 {.param = parameter.data(),
                  .grad = gradient.data(),
                  .m = m.data(),
                  .v = v.data(),
                  .copy = nullptr,
                  .n = parameter.elements(),
                  .dtype = parameter.dtype(),
                  .grad_dtype = gradient.dtype(),
                  .copy_dtype = parameter.dtype(),
                  .lr = learning_rate(),
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .eps = options_.eps,
                  .weight_decay = decays ? options_.weight_decay : 0.0,
                  .correction1 = 1.0 - std::pow(options_.beta1, steps),
                  .correction2 = 1.0 - std::pow(options_.beta2, steps),
                  .grad_scale = gradient_scale});
}

}  // namespace tessera::optim

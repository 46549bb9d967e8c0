// AdamW.
#include <cmath>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/optim/adamw_update.h"
#include "engine/optim/optimizer.h"

namespace tessera::optim {

AdamW::AdamW(std::vector<nn::NamedParameter> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups), options_(options) {
  TESSERA_REQUIRE(options.lr >= 0 && options.eps >= 0 && options.beta1 >= 0 && options.beta1 < 1 &&
                      options.beta2 >= 0 && options.beta2 < 1,
                  "AdamW: lr {}, betas {} and {}, eps {}", options.lr, options.beta1, options.beta2,
                  options.eps);
  set_learning_rate(options.lr);
  make_state_files(AdamW::state_names());
}

void AdamW::update(const Update& u) {
  update_by_adamw(u, learning_rate(), options_);
}

void update_by_adamw(const Update& u, double rate, const AdamWOptions& options) {
  const auto steps = static_cast<double>(u.step);
  TESSERA_LAUNCH(u.device, adamw_step,
                 {.param = u.parameter,
                  .grad = u.gradient,
                  .m = u.states[0],
                  .v = u.states[1],
                  .copy = nullptr,
                  .n = u.count,
                  .dtype = u.dtype,
                  .grad_dtype = u.gradient_dtype,
                  .copy_dtype = u.dtype,
                  .lr = rate * u.lr_scale,
                  .beta1 = options.beta1,
                  .beta2 = options.beta2,
                  .eps = options.eps,
                  .weight_decay = u.decay_or(options.weight_decay),
                  .correction1 = 1.0 - std::pow(options.beta1, steps),
                  .correction2 = 1.0 - std::pow(options.beta2, steps),
                  .grad_scale = u.gradient_scale,
                  .decay = {u.decay_edges.data(), static_cast<int>(u.decay_edges.size())}});
}

}  // namespace tessera::optim

// Lion.
#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/optim/optimizer.h"

namespace tessera::optim {

Lion::Lion(std::vector<nn::NamedParameter> parameters, const LionOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups), options_(options) {
  TESSERA_REQUIRE(options.lr >= 0 && options.beta1 >= 0 && options.beta1 < 1 &&
                      options.beta2 >= 0 && options.beta2 < 1 && options.weight_decay >= 0,
                  "Lion: lr {}, betas {} and {}, weight_decay {}", options.lr, options.beta1,
                  options.beta2, options.weight_decay);
  set_learning_rate(options.lr);
  make_state_files(Lion::state_names());
}

void Lion::update(const Update& u) {
  TESSERA_LAUNCH(u.device, lion_step,
                 {.param = u.parameter,
                  .grad = u.gradient,
                  .m = u.states[0],
                  .copy = nullptr,
                  .n = u.count,
                  .dtype = u.dtype,
                  .grad_dtype = u.gradient_dtype,
                  .copy_dtype = u.dtype,
                  .lr = learning_rate() * u.lr_scale,
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .weight_decay = u.decay_or(options_.weight_decay),
                  .grad_scale = u.gradient_scale,
                  .decay = {u.decay_edges.data(), static_cast<int>(u.decay_edges.size())}});
}

}  // namespace tessera::optim

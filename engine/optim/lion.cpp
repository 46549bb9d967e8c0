// Lion.
#include "engine/device/launch.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

Settings settings_of(const LionOptions& options) {
  return Settings("Lion")
      .not_negative("lr", options.lr)
      .below_one("beta1", options.beta1)
      .below_one("beta2", options.beta2)
      .not_negative("weight_decay", options.weight_decay)
      .function("decay", static_cast<bool>(options.decay))
      .groups(options.groups);
}

Lion::Lion(std::vector<nn::NamedParameter> parameters, const LionOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups), options_(options) {
  settings_of(options).check();
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

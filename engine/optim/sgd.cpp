// Stochastic gradient descent with momentum.
#include "engine/device/launch.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

Settings settings_of(const SgdOptions& options) {
  return Settings("Sgd")
      .not_negative("lr", options.lr)
      .not_negative("momentum", options.momentum)
      .not_negative("dampening", options.dampening)
      .not_negative("weight_decay", options.weight_decay)
      .add("nesterov", options.nesterov)
      .require(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
               "it needs a momentum and no dampening")
      .function("decay", static_cast<bool>(options.decay))
      .groups(options.groups);
}

Sgd::Sgd(std::vector<nn::NamedParameter> parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups), options_(options) {
  settings_of(options).check();
  set_learning_rate(options.lr);
  make_state_files(Sgd::state_names());
}

std::vector<std::string> Sgd::state_names() const {
  if (options_.momentum == 0) return {};
  return {"momentum"};
}

void Sgd::update(const Update& u) {
  TESSERA_LAUNCH(u.device, sgd_step,
                 {.param = u.parameter,
                  .grad = u.gradient,
                  .momentum_buffer = u.states.empty() ? nullptr : u.states[0],
                  .copy = nullptr,
                  .n = u.count,
                  .dtype = u.dtype,
                  .grad_dtype = u.gradient_dtype,
                  .copy_dtype = u.dtype,
                  .lr = learning_rate() * u.lr_scale,
                  .momentum = options_.momentum,
                  .dampening = options_.dampening,
                  .weight_decay = u.decay_or(options_.weight_decay),
                  .nesterov = options_.nesterov,
                  .first_step = u.step == 1,
                  .grad_scale = u.gradient_scale,
                  .decay = {u.decay_edges.data(), static_cast<int>(u.decay_edges.size())}});
}

}  // namespace tessera::optim

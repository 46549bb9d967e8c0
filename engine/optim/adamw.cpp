// AdamW.
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/xxh3.h"
#include "engine/device/launch.h"
#include "engine/optim/adamw_update.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

Settings settings_of(const AdamWOptions& options) {
  return Settings("AdamW")
      .not_negative("lr", options.lr)
      .below_one("beta1", options.beta1)
      .below_one("beta2", options.beta2)
      .not_negative("eps", options.eps)
      .not_negative("weight_decay", options.weight_decay)
      .add("state_dtype", name_of(options.state_dtype))
      .require(options.state_dtype == float32 || options.state_dtype == bfloat16,
               "it is float32 or bfloat16")
      .add("seed", options.seed)
      .function("decay", static_cast<bool>(options.decay))
      .groups(options.groups);
}

AdamW::AdamW(std::vector<nn::NamedParameter> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups), options_(options) {
  settings_of(options).check();
  set_learning_rate(options.lr);
  if (is_rounded()) {
    check_parameters();
  } else {
    make_state_files(AdamW::state_names());
  }
}

void AdamW::check_parameters() const {
  require_on_device("AdamW with bf16 moments");
  for (const nn::NamedParameter& parameter : parameters()) {
    TESSERA_CHECK(!parameter.tensor.requires_grad() || parameter.tensor.dtype() == float32,
                  ErrorCode::configuration,
                  "AdamW with bf16 moments updates fp32 parameters; {} is {}: leave out "
                  "AdamWOptions::state_dtype",
                  parameter.name, name_of(parameter.tensor.dtype()));
  }
}

StateFormat AdamW::state_format(std::size_t /*parameter*/, std::size_t /*which*/) const {
  if (is_rounded()) return {.dtype = bfloat16};
  return {};
}

void AdamW::update_rounded(const Update& u) const {
  const std::string& name = parameters()[u.parameter_index].name;
  // Each parameter and step has draws of its own; the constant is odd, so no step repeats
  // another's.
  const std::uint64_t stream = XXH3_64bits(name.data(), name.size()) +
                               static_cast<std::uint64_t>(u.step) * 0x9e3779b97f4a7c15u;
  const auto steps = static_cast<double>(u.step);
  TESSERA_LAUNCH(u.device, adamw_rounded_step,
                 {.param = u.parameter,
                  .grad = u.gradient,
                  .m = u.states[0],
                  .v = u.states[1],
                  .n = u.count,
                  .first = u.first,
                  .grad_dtype = u.gradient_dtype,
                  .key = {.seed = options_.seed, .stream = stream},
                  .lr = learning_rate() * u.lr_scale,
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .eps = options_.eps,
                  .weight_decay = u.decay_or(options_.weight_decay),
                  .correction1 = 1.0 - std::pow(options_.beta1, steps),
                  .correction2 = 1.0 - std::pow(options_.beta2, steps),
                  .grad_scale = u.gradient_scale,
                  .decay = {u.decay_edges.data(), static_cast<int>(u.decay_edges.size())}});
}

void AdamW::update(const Update& u) {
  if (is_rounded()) return update_rounded(u);
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

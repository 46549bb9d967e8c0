// AdamW with moments of 8 bits.
#include "engine/optim/adamw_8bit.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/optim/adamw_update.h"

namespace tessera::optim {
namespace {

bool keeps_numbers(const AdamW8BitOptions& options, const nn::NamedParameter& parameter) {
  return parameter.shape.elements() < options.min_8bit_size;
}

ParameterFilter small_parameters(const AdamW8BitOptions& options) {
  return
      [options](const nn::NamedParameter& parameter) { return keeps_numbers(options, parameter); };
}

}  // namespace

Settings settings_of(const AdamW8BitOptions& options) {
  return Settings("AdamW8Bit")
      .not_negative("lr", options.lr)
      .below_one("beta1", options.beta1)
      .below_one("beta2", options.beta2)
      .not_negative("eps", options.eps)
      .not_negative("weight_decay", options.weight_decay)
      .add("min_8bit_size", options.min_8bit_size)
      .require(options.min_8bit_size >= 0, "it must be at least 0")
      .function("decay", static_cast<bool>(options.decay))
      .groups(options.groups);
}

ShardNeeds needs_of(const AdamW8BitOptions& options) {
  return {.apart = small_parameters(options), .block = eight_bit_block};
}

AdamW8Bit::AdamW8Bit(std::vector<nn::NamedParameter> parameters, const AdamW8BitOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups, small_parameters(options)),
      options_(options) {
  settings_of(options).check();
  check_parameters();
  set_learning_rate(options.lr);
}

bool AdamW8Bit::is_small(std::size_t parameter) const {
  return keeps_numbers(options_, parameters()[parameter]);
}

std::vector<std::string> AdamW8Bit::state_names_of(std::size_t parameter) const {
  if (is_small(parameter)) return {"exp_avg", "exp_avg_sq"};
  return state_names();
}

StateFormat AdamW8Bit::state_format(std::size_t parameter, std::size_t which) const {
  if (is_small(parameter)) return {};
  if (which % 2 == 0) return {.dtype = uint8};
  return {.dtype = float32, .block = eight_bit_block};
}

void AdamW8Bit::check_parameters() const {
  require_on_device("AdamW8Bit");
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const nn::NamedParameter& named = parameters()[i];
    if (!named.tensor.requires_grad() || is_small(i)) continue;
    TESSERA_CHECK(named.tensor.dtype() == float32, ErrorCode::configuration,
                  "AdamW8Bit updates fp32 parameters; {} is {}: take AdamW", named.name,
                  name_of(named.tensor.dtype()));
    // 0: the parameter is whole.
    TESSERA_CHECK(named.tensor.storage()->shard().padded_to % eight_bit_block == 0,
                  ErrorCode::configuration,
                  "AdamW8Bit: shard boundaries may lie inside a block of {} elements of {}; set "
                  "ShardingOptions::block and ::apart to those of optim::needs_of(options)",
                  eight_bit_block, named.name);
  }
}

void AdamW8Bit::update(const Update& u) {
  if (is_small(u.parameter_index)) {
    return update_by_adamw(u, learning_rate(),
                           {.beta1 = options_.beta1,
                            .beta2 = options_.beta2,
                            .eps = options_.eps,
                            .weight_decay = options_.weight_decay});
  }
  const auto steps = static_cast<double>(u.step);
  TESSERA_LAUNCH(u.device, adamw_8bit_step,
                 {.param = u.parameter,
                  .grad = u.gradient,
                  .m_codes = u.states[0],
                  .v_codes = u.states[2],
                  .m_scales = u.states[1],
                  .v_scales = u.states[3],
                  .n = u.count,
                  .grad_dtype = u.gradient_dtype,
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

}  // namespace tessera::optim

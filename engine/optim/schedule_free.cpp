// Schedule-free AdamW.
#include "engine/optim/schedule_free.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/device/launch.h"
#include "engine/device/queue.h"

namespace tessera::optim {
namespace {

enum StateOfScheduleFree : std::size_t { z_state, square_state, average_of_z };
enum NumberOfScheduleFree : std::size_t { lr_max_number, weight_sum_number };

}  // namespace

Settings settings_of(const ScheduleFreeAdamWOptions& options) {
  return Settings("ScheduleFreeAdamW")
      .not_negative("lr", options.lr)
      .below_one("beta1", options.beta1)
      .below_one("beta2", options.beta2)
      .not_negative("eps", options.eps)
      .not_negative("weight_decay", options.weight_decay)
      .not_negative("r", options.r)
      .not_negative("weight_lr_power", options.weight_lr_power)
      .function("decay", static_cast<bool>(options.decay))
      .groups(options.groups);
}

ScheduleFreeAdamW::ScheduleFreeAdamW(std::vector<nn::NamedParameter> parameters,
                                     const ScheduleFreeAdamWOptions& options)
    : Optimizer(std::move(parameters), options.decay, options.groups), options_(options) {
  settings_of(options).check();
  set_learning_rate(options.lr);
  require_on_device("ScheduleFreeAdamW");
}

double ScheduleFreeAdamW::weight_of(std::int64_t step, double lr_max) const {
  return std::pow(static_cast<double>(step), options_.r) *
         std::pow(lr_max, options_.weight_lr_power);
}

void ScheduleFreeAdamW::count_step(std::size_t parameter, double lr_scale,
                                   std::span<double> numbers) {
  double& lr_max = numbers[lr_max_number];
  lr_max = std::max(lr_max, learning_rate() * lr_scale);
  numbers[weight_sum_number] += weight_of(step_count(parameter), lr_max);
}

void ScheduleFreeAdamW::update(const Update& u) {
  const double sum = u.numbers[weight_sum_number];
  const double weight = weight_of(u.step, u.numbers[lr_max_number]);
  TESSERA_LAUNCH(u.device, schedule_free_step,
                 {.param = u.parameter,
                  .grad = u.gradient,
                  .z = u.states[z_state],
                  .v = u.states[square_state],
                  .average = u.states[average_of_z],
                  .n = u.count,
                  .dtype = u.dtype,
                  .grad_dtype = u.gradient_dtype,
                  .lr = learning_rate() * u.lr_scale,
                  .beta1 = options_.beta1,
                  .beta2 = options_.beta2,
                  .eps = options_.eps,
                  .weight_decay = u.decay_or(options_.weight_decay),
                  .correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(u.step)),
                  .part = sum > 0 ? weight / sum : 0.0,
                  .first_step = u.step == 1,
                  .grad_scale = u.gradient_scale,
                  .decay = {u.decay_edges.data(), static_cast<int>(u.decay_edges.size())}});
}

void ScheduleFreeAdamW::return_to_training(const Update& u) {
  TESSERA_LAUNCH(u.device, schedule_free_point,
                 {.param = u.parameter,
                  .z = u.states[z_state],
                  .average = u.states[average_of_z],
                  .n = u.count,
                  .dtype = u.dtype,
                  .beta1 = options_.beta1});
}

void ScheduleFreeAdamW::take_weights(const Update& u, bool has_state) {
  const std::size_t bytes = static_cast<std::size_t>(u.count) * size_of(u.dtype);
  DeviceQueue& queue = current_queue(u.device);
  queue.copy(u.states[average_of_z], u.parameter, bytes);
  if (!has_state) queue.copy(u.states[z_state], u.parameter, bytes);
}

}  // namespace tessera::optim

// The rules by which the factor grows and falls.
#include "sharding/context/loss_scaler.h"

#include <cmath>
#include <string_view>

#include "base/error.h"

namespace tessera {
namespace {

// The largest power of two of fp32, because gradients are divided in fp32.
constexpr double largest_factor = 0x1p127;
constexpr double smallest_factor = 0x1p-126;
// The number of reductions of the dynamic factor from 65536 to 1.
constexpr int most_lost_steps = 17;

bool is_power_of_two(double value) {
  int exponent = 0;
  return value >= smallest_factor && value <= largest_factor && std::frexp(value, &exponent) == 0.5;
}

void check_power(std::string_view what, double value) {
  TESSERA_CHECK(is_power_of_two(value), ErrorCode::configuration,
                "{} must be a power of two, so that scaling changes no bit; got {}", what, value);
}

}  // namespace

LossScaler::LossScaler(const LossScaleOptions& options) : options_(options) {
  check_power("the loss scale", options.fixed.value_or(options.initial));
  check_power("the loss scale's growth factor", options.growth_factor);
  check_power("the loss scale's back-off factor", options.backoff_factor);
  check_power("the smallest loss scale", options.minimum);
  TESSERA_CHECK(options.growth_factor > 1, ErrorCode::configuration,
                "the loss scale's growth factor must be above 1, got {}", options.growth_factor);
  TESSERA_CHECK(options.backoff_factor < 1, ErrorCode::configuration,
                "the loss scale's back-off factor must be below 1, got {}", options.backoff_factor);
  TESSERA_CHECK(options.growth_interval >= 1, ErrorCode::configuration,
                "the loss scale's growth interval must be at least 1, got {}",
                options.growth_interval);
  TESSERA_CHECK(options.fixed || options.initial >= options.minimum, ErrorCode::configuration,
                "the first loss scale {} is below the smallest one, {}", options.initial,
                options.minimum);
  state_.factor = options.fixed.value_or(options.initial);
}

bool LossScaler::update(double grad_norm) {
  if (std::isfinite(grad_norm)) {
    skipped_in_a_row_ = 0;
    ++state_.good_steps;
    if (!options_.fixed && state_.good_steps >= options_.growth_interval) {
      state_.good_steps = 0;
      const double grown = state_.factor * options_.growth_factor;
      if (grown <= largest_factor) state_.factor = grown;
    }
    return true;
  }
  ++skipped_in_a_row_;
  ++state_.skipped_steps;
  state_.good_steps = 0;
  if (options_.fixed) {
    TESSERA_CHECK(skipped_in_a_row_ < most_lost_steps, ErrorCode::numeric,
                  "gradients overflowed in {} steps in a row under the loss scale {}; give a "
                  "smaller one, or `dynamic`",
                  skipped_in_a_row_, *options_.fixed);
    return false;
  }
  const double reduced = state_.factor * options_.backoff_factor;
  TESSERA_CHECK(reduced >= options_.minimum, ErrorCode::numeric,
                "gradients overflow under the loss scale {}, and the next one, {}, is below the "
                "smallest allowed, {}: the loss or the weights are not finite, or float16 is too "
                "narrow for this model; lower the learning rate, go back to a checkpoint, or use "
                "bfloat16",
                state_.factor, reduced, options_.minimum);
  state_.factor = reduced;
  return false;
}

void LossScaler::restore(const State& state) {
  TESSERA_CHECK(is_power_of_two(state.factor) && state.good_steps >= 0 && state.skipped_steps >= 0,
                ErrorCode::checkpoint,
                "no loss scaler saved a factor of {} with {} good and {} skipped steps",
                state.factor, state.good_steps, state.skipped_steps);
  state_ = state;
  if (options_.fixed) state_.factor = *options_.fixed;
}

}  // namespace tessera

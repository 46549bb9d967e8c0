// Learning-rate schedules: pure functions of the step, so resuming needs no state.
#pragma once

#include <cstdint>

namespace tessera::optim {

enum class ScheduleKind : std::uint8_t { constant, linear, cosine };

// Linear warm-up from peak/warmup_steps over `warmup_steps`, then constant, or decay that reaches
// `minimum` at step `decay_steps`.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;

  // The rate of the `step`-th update, counted from 0.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace tessera::optim

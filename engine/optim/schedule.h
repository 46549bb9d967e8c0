// Schedules: pure functions of the step, so resuming needs no state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// A whole number that changes at given steps of a run, such as the micro-batches of a step: pairs
// of a step and the number from that step on. Steps count from 1, as in the logs, and ascend. The
// steps before the first pair have the number `before`.
struct StepRamp {
  std::vector<std::pair<std::int64_t, std::int64_t>> changes = {};

  [[nodiscard]] bool empty() const { return changes.empty(); }
  [[nodiscard]] std::int64_t at(std::int64_t step, std::int64_t before) const;
  [[nodiscard]] std::int64_t largest(std::int64_t before) const;
  // The sum over the steps 1 to `steps`.
  [[nodiscard]] std::int64_t sum(std::int64_t steps, std::int64_t before) const;
  [[nodiscard]] std::string to_string() const;  // "{500: 2, 2000: 4}"
  [[nodiscard]] bool operator==(const StepRamp&) const = default;
};

}  // namespace tessera

namespace tessera::optim {

enum class ScheduleKind : std::uint8_t {
  constant,
  linear,
  cosine,
  cosine_with_restarts,
  polynomial,
  wsd_linear,
  wsd_cosine,
  wsd_1_sqrt
};

// Linear warm-up from peak/warmup_steps over `warmup_steps`, then constant, or a decay that reaches
// `minimum` at step `decay_steps` and stays there. The decay begins after the warm-up; the decay of
// wsd (warm-up, stable, decay) begins at step `decay_start`, and the rate is `peak` until then.
struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  std::int64_t decay_start = 0;  // wsd_*; below decay_steps
  double power = 1;              // polynomial; above 0
  std::int64_t cycles = 1;       // cosine_with_restarts; at least 1

  // The rate of the `step`-th update, counted from 0.
  [[nodiscard]] double at(std::int64_t step) const;
};

// A kind of schedule: a row of the table in schedule.cpp.
struct ScheduleRow {
  ScheduleKind kind;
  std::string_view name;
  // The share of peak - minimum that is left at `progress` of the decay, which is in [0, 1]: 1 at
  // its begin, 0 at its end. Null: no decay.
  double (*share)(const Schedule&, double progress);
  bool has_stable_phase = false;  // uses Schedule::decay_start
};

// All kinds.
std::span<const ScheduleRow> schedule_rows();
const ScheduleRow& row_of(ScheduleKind kind);

}  // namespace tessera::optim

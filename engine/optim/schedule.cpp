// Warm-up, and the table of decays. Sources: cosine, and its restarts, Loshchilov & Hutter 2017
// ("SGDR", arXiv:1608.03983, equation 5); wsd, Hu et al. 2024 ("MiniCPM", arXiv:2404.06395, section
// 4); its 1-sqrt decay, Hägele et al. 2024 (arXiv:2405.18392, section 3.1). Restarts and the
// polynomial have the formulas of torch.optim.lr_scheduler and transformers.optimization.
#include "engine/optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace tessera {

std::int64_t StepRamp::at(std::int64_t step, std::int64_t before) const {
  std::int64_t number = before;
  for (const auto& [from, value] : changes) {
    if (from <= step) number = value;
  }
  return number;
}

std::int64_t StepRamp::largest(std::int64_t before) const {
  std::int64_t number = before;
  for (const auto& [from, value] : changes) number = std::max(number, value);
  return number;
}

std::int64_t StepRamp::sum(std::int64_t steps, std::int64_t before) const {
  std::int64_t total = 0, done = 0, number = before;
  for (const auto& [from, value] : changes) {
    const std::int64_t end = std::clamp(from - 1, done, std::max(steps, done));
    total += (end - done) * number;
    done = end;
    number = value;
  }
  return total + (std::max(steps, done) - done) * number;
}

std::string StepRamp::to_string() const {
  std::string text;
  for (const auto& [from, value] : changes) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", from, value);
  }
  return "{" + text + "}";
}

}  // namespace tessera

namespace tessera::optim {
namespace {

double linear_share(const Schedule& /*schedule*/, double progress) {
  return 1.0 - progress;
}

double cosine_share(const Schedule& /*schedule*/, double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

// Every cycle begins at the peak; the end is the end of the last one.
double restarts_share(const Schedule& schedule, double progress) {
  if (progress >= 1.0) return 0.0;
  return cosine_share(schedule, std::fmod(static_cast<double>(schedule.cycles) * progress, 1.0));
}

double polynomial_share(const Schedule& schedule, double progress) {
  return std::pow(1.0 - progress, schedule.power);
}

double one_minus_root_share(const Schedule& /*schedule*/, double progress) {
  return 1.0 - std::sqrt(progress);
}

using Kind = ScheduleKind;
constexpr auto rows = std::to_array<ScheduleRow>({
    {Kind::cosine, "cosine", cosine_share},
    {Kind::linear, "linear", linear_share},
    {Kind::constant, "constant", nullptr},
    {Kind::cosine_with_restarts, "cosine_with_restarts", restarts_share},
    {Kind::polynomial, "polynomial", polynomial_share},
    {Kind::wsd_linear, "wsd_linear", linear_share, true},
    {Kind::wsd_cosine, "wsd_cosine", cosine_share, true},
    {Kind::wsd_1_sqrt, "wsd_1_sqrt", one_minus_root_share, true},
});

}  // namespace

std::span<const ScheduleRow> schedule_rows() {
  return rows;
}

const ScheduleRow& row_of(ScheduleKind kind) {
  const auto* const row =
      std::find_if(rows.begin(), rows.end(), [&](const ScheduleRow& r) { return r.kind == kind; });
  TESSERA_REQUIRE(row != rows.end(), "no schedule has the kind {}", static_cast<int>(kind));
  return *row;
}

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  const ScheduleRow& row = row_of(kind);
  const std::int64_t start =
      row.has_stable_phase ? std::max(warmup_steps, decay_start) : warmup_steps;
  if (row.share == nullptr || decay_steps <= start || step < start) return peak;
  const double progress =
      std::min(1.0, static_cast<double>(step - start) / static_cast<double>(decay_steps - start));
  return minimum + (peak - minimum) * row.share(*this, progress);
}

}  // namespace tessera::optim

// The values that options may have.
#include "trainer/option_checks.h"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace tessera {
namespace {

class Checks {
 public:
  explicit Checks(const std::string& source) : source_(source) {}

  template <class Value>
  void require(bool holds, std::string_view option, Value value, std::string_view allowed) const {
    if (holds) return;
    if constexpr (std::is_floating_point_v<Value>) {
      if (std::isnan(value)) value = std::fabs(value);  // the sign bit of a NaN has no meaning
    }
    fail(ErrorCode::configuration, "{}: {} is {}: {}", source_, option, value, allowed);
  }
  void at_least(std::int64_t least, std::string_view option, std::int64_t value) const {
    require(value >= least, option, value, fmt::format("it must be at least {}", least));
  }
  void not_negative(std::string_view option, double value) const {
    require(std::isfinite(value) && value >= 0, option, value,
            "it must be a finite number that is not negative");
  }
  void below_one(std::string_view option, double value) const {
    require(value >= 0 && value < 1, option, value, "it must be at least 0 and below 1");
  }

 private:
  const std::string& source_;
};

// The steps ascend from 2, and each number is at least 1.
void check_ramp(const Checks& checks, const StepRamp& ramp) {
  std::int64_t last = 1;
  for (const auto& [from, value] : ramp.changes) {
    checks.require(from > last, "accumulation_ramp has a step that", from,
                   last == 1 ? std::string("the first must be at least 2")
                             : fmt::format("steps must ascend, and {} is before it", last));
    checks.at_least(1, fmt::format("accumulation_ramp of step {}", from), value);
    last = from;
  }
}

void check_optimizer(const Checks& checks, const optim::OptimizerChoice& choice) {
  const auto* const make = std::get_if<optim::OptimizerFactory>(&choice);
  checks.require(make == nullptr || *make, "optimizer", "an empty function",
                 "it must make an optimizer");
  const optim::Settings settings = optim::settings_of_choice(choice);
  for (const optim::Setting& setting : settings.list()) {
    checks.require(setting.fault.empty(), "optimizer." + setting.name, setting.value,
                   setting.fault);
  }
}

void check_schedule(const Checks& checks, const optim::Schedule& schedule) {
  checks.not_negative("schedule.peak", schedule.peak);
  checks.not_negative("schedule.minimum", schedule.minimum);
  const optim::ScheduleRow& row = optim::row_of(schedule.kind);
  checks.require(row.share == nullptr || schedule.minimum <= schedule.peak, "schedule.minimum",
                 schedule.minimum,
                 fmt::format("it must be at most schedule.peak, {}", schedule.peak));
  checks.at_least(0, "schedule.warmup_steps", schedule.warmup_steps);
  checks.at_least(0, "schedule.decay_steps", schedule.decay_steps);
  if (row.share == nullptr) return;
  checks.require(
      schedule.decay_steps > 0, "schedule.decay_steps", schedule.decay_steps,
      fmt::format("{} needs the step at which the rate reaches schedule.minimum", row.name));
  checks.require(schedule.warmup_steps < schedule.decay_steps, "schedule.warmup_steps",
                 schedule.warmup_steps,
                 fmt::format("it must be below schedule.decay_steps, {}", schedule.decay_steps));
  checks.require(!row.has_stable_phase || (schedule.decay_start >= schedule.warmup_steps &&
                                           schedule.decay_start < schedule.decay_steps),
                 "schedule.decay_start", schedule.decay_start,
                 fmt::format("it must be at least schedule.warmup_steps, {}, and below "
                             "schedule.decay_steps, {}",
                             schedule.warmup_steps, schedule.decay_steps));
  checks.require(std::isfinite(schedule.power) && schedule.power > 0, "schedule.power",
                 schedule.power, "it must be a finite number above 0");
  checks.at_least(1, "schedule.cycles", schedule.cycles);
}

void check_spikes(const Checks& checks, const TrainerOptions& options) {
  const SpikeOptions& spikes = options.spikes;
  checks.require(!spikes.sigma || (std::isfinite(*spikes.sigma) && *spikes.sigma > 0),
                 "spikes.sigma", spikes.sigma.value_or(0), "it must be a finite number above 0");
  checks.require(spikes.window >= 2 && spikes.window <= SpikeOptions::longest_window,
                 "spikes.window", spikes.window,
                 fmt::format("it must be from 2 to {}", SpikeOptions::longest_window));
  checks.require(spikes.action != SpikeAction::rollback ||
                     (!options.checkpoint.dir.empty() && options.checkpoint.every > 0),
                 "spikes.action", "rollback", "it needs checkpoint.dir and checkpoint.every");
}

void check_rank_weights(const Checks& checks, const RankWeightOptions& weights) {
  checks.require(weights.given.empty() || !weights.measured, "rank_weights.measured", true,
                 "rank_weights.given has the weights; set one of the two");
  checks.at_least(1, "rank_weights.rebalance_every", weights.rebalance_every);
  checks.require(std::isfinite(weights.limit) && weights.limit >= 1, "rank_weights.limit",
                 weights.limit, "it must be a finite number of at least 1");
}

void check_pruning(const Checks& checks, const PruningOptions& pruning) {
  const bool two_four = is_two_four(pruning.method);
  checks.require(pruning.sparsity > 0 && pruning.sparsity < 1, "pruning.sparsity", pruning.sparsity,
                 "it must be above 0 and below 1");
  checks.require(!two_four || pruning.sparsity == 0.5, "pruning.sparsity", pruning.sparsity,
                 "it is 0.5 for 2:4");
  checks.at_least(1, "pruning.begin", pruning.begin);
  checks.at_least(pruning.begin, "pruning.end", pruning.end);
  checks.at_least(1, "pruning.every", pruning.every);
  checks.at_least(1, "pruning.calibration_batches", pruning.calibration_batches);
  checks.require(!pruning.weights.empty(), "pruning.weights", "empty",
                 "it names the weights to prune");
}

void check_checkpoint(const Checks& checks, const CheckpointOptions& options) {
  constexpr std::string_view of_the_run = "the Trainer sets it; leave it out";
  checks.at_least(0, "checkpoint.every", options.every);
  checks.require(!options.resume.empty(), "checkpoint.resume", "\"\"",
                 "it must be \"auto\", \"never\", or the path of a step or of a folder of steps");
  checks.at_least(0, "checkpoint.save.keep", options.save.keep);
  checks.at_least(0, "checkpoint.save.keep_best", options.save.keep_best);
  checks.at_least(0, "checkpoint.save.stall_timeout", options.save.stall_timeout.count());
  checks.require(!options.save.step, "checkpoint.save.step", options.save.step.value_or(0),
                 of_the_run);
  checks.require(!options.save.score, "checkpoint.save.score", options.save.score.value_or(0),
                 of_the_run);
  checks.require(options.save.line.run.empty(), "checkpoint.save.line", options.save.line.run,
                 of_the_run);
}

}  // namespace

void check_options(const TrainerOptions& options) {
  if (options.are_checked) return;
  const Checks checks(options.names.source);
  checks.at_least(0, "steps", options.steps);
  checks.at_least(1, "batch_size", options.batch_size);
  checks.at_least(1, "gradient_accumulation_steps", options.gradient_accumulation_steps);
  check_ramp(checks, options.accumulation_ramp);
  checks.require(options.max_grad_norm >= 0, "max_grad_norm", options.max_grad_norm,
                 "it must be at least 0 (0: no clipping)");
  check_optimizer(checks, options.optimizer);
  if (options.schedule) check_schedule(checks, *options.schedule);
  checks.require(!options.data.even_batches || !options.data.drop_last, "data.even_batches", true,
                 "data.drop_last leaves out the batches that it fills; set one of the two");
  checks.require(options.data.samples.empty(), "data.samples", "set",
                 "the task gives them (samples_per_epoch()); leave it out");
  check_spikes(checks, options);
  check_rank_weights(checks, options.rank_weights);
  checks.at_least(1, "context_parallel", options.context_parallel);
  checks.require(!options.deal_by_cost || options.rank_weights.are_equal(), "deal_by_cost", true,
                 "it excludes rank_weights; leave one of the two out");
  checks.require(options.context_parallel == 1 || options.rank_weights.are_equal(),
                 "context_parallel", options.context_parallel,
                 "it excludes rank_weights; leave one of the two out");
  if (options.pruning) check_pruning(checks, *options.pruning);
  check_checkpoint(checks, options.checkpoint);
}

}  // namespace tessera

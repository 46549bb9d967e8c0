// Writes the options of a run as text, one on each line, and compares the texts of the ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/state/scalars_json.h"
#include "engine/random.h"
#include "sharding/units/structure.h"
#include "trainer/option_checks.h"

namespace tessera {
namespace {

class OptionLines {
 public:
  template <class Value>
  OptionLines& add(std::string_view name, const Value& value) {
    text_ += fmt::format("{}: {}\n", name, value);
    return *this;
  }
  // Functions cannot be compared.
  template <class Function>
  OptionLines& add_function(std::string_view name, const Function& function) {
    return add(name, function ? "set" : "not set");
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_optimizer(OptionLines& lines, const optim::OptimizerChoice& choice) {
  const optim::Settings settings = optim::settings_of_choice(choice);
  lines.add("optimizer", settings.optimizer());
  for (const optim::Setting& setting : settings.list())
    lines.add("optimizer." + setting.name, setting.value);
}

void add_schedule(OptionLines& lines, const std::optional<optim::Schedule>& schedule) {
  if (!schedule) {
    lines.add("schedule", "not set");
    return;
  }
  lines.add("schedule.kind", optim::row_of(schedule->kind).name)
      .add("schedule.peak", schedule->peak)
      .add("schedule.minimum", schedule->minimum)
      .add("schedule.warmup_steps", schedule->warmup_steps)
      .add("schedule.decay_steps", schedule->decay_steps)
      .add("schedule.decay_start", schedule->decay_start)
      .add("schedule.power", schedule->power)
      .add("schedule.cycles", schedule->cycles);
}

void add_checkpoint(OptionLines& lines, const CheckpointOptions& options) {
  const SaveOptions& save = options.save;
  lines.add("checkpoint.dir", options.dir)
      .add("checkpoint.every", options.every)
      .add("checkpoint.resume", options.resume)
      .add("checkpoint.async", options.async)
      .add("checkpoint.export_folder", options.export_folder)
      .add("checkpoint.save.type",
           save.type == checkpoint::StateDictType::full ? "full" : "sharded")
      .add("checkpoint.save.model_dtype", tessera::name_of(save.model_dtype))
      .add("checkpoint.save.keep", save.keep)
      .add("checkpoint.save.keep_best", save.keep_best)
      .add("checkpoint.save.scalars", checkpoint::json_of(save.scalars).dump())
      .add("checkpoint.save.tensor_folders",
           fmt::format("{}", fmt::join(save.tensor_folders, ", ")))
      .add_function("checkpoint.save.names", save.names)
      .add("checkpoint.save.model_file", save.model_file)
      .add("checkpoint.save.max_file_size", save.max_file_size)
      .add("checkpoint.save.stall_timeout", fmt::format("{} ms", save.stall_timeout.count()))
      .add("checkpoint.files", options.files.size())
      .add("checkpoint.left_out", fmt::format("{}", fmt::join(options.left_out, ", ")));
}

void add_pruning(OptionLines& lines, const std::optional<PruningOptions>& pruning) {
  if (!pruning) {
    lines.add("pruning", "not set");
    return;
  }
  std::string weights;
  for (const PrunedWeight& weight : pruning->weights) {
    weights += fmt::format("{}{} ", weight.name, weight.in_first ? " [in, out]" : "");
  }
  lines.add("pruning.method", static_cast<int>(pruning->method))
      .add("pruning.sparsity", pruning->sparsity)
      .add("pruning.begin", pruning->begin)
      .add("pruning.end", pruning->end)
      .add("pruning.every", pruning->every)
      .add("pruning.calibration_batches", pruning->calibration_batches)
      .add("pruning.weights", weights);
}

std::string describe_run(const TrainerOptions& options, const tasks::Task& task) {
  OptionLines lines;
  lines.add("batch_size", options.batch_size)
      .add("gradient_accumulation_steps", options.gradient_accumulation_steps)
      .add("accumulation_ramp", options.accumulation_ramp.to_string())
      .add("rank_weights.given", fmt::format("{}", fmt::join(options.rank_weights.given, ", ")))
      .add("rank_weights.measured", options.rank_weights.measured)
      .add("rank_weights.rebalance_every", options.rank_weights.rebalance_every)
      .add("rank_weights.limit", options.rank_weights.limit)
      .add("context_parallel", options.context_parallel)
      .add("deal_by_cost", options.deal_by_cost)
      .add("sync_each_batch", options.sync_each_batch)
      .add("steps", options.steps)
      .add("max_grad_norm", options.max_grad_norm);
  add_optimizer(lines, options.optimizer);
  add_schedule(lines, options.schedule);
  add_pruning(lines, options.pruning);
  const LossScaleOptions& scale = options.loss_scale;
  lines.add("loss_scale.fixed", scale.fixed ? fmt::to_string(*scale.fixed) : "not set")
      .add("loss_scale.initial", scale.initial)
      .add("loss_scale.growth_factor", scale.growth_factor)
      .add("loss_scale.backoff_factor", scale.backoff_factor)
      .add("loss_scale.growth_interval", scale.growth_interval)
      .add("loss_scale.minimum", scale.minimum)
      .add("spikes.action", tessera::name_of(options.spikes.action))
      .add("spikes.sigma", options.spikes.sigma ? fmt::to_string(*options.spikes.sigma) : "not set")
      .add("spikes.window", options.spikes.window)
      .add("data.mix", options.data.mix == tasks::Mix::by_size ? "by_size" : "round_robin")
      .add("data.seed", options.data.seed)
      .add("data.even_batches", options.data.even_batches)
      .add("data.drop_last", options.data.drop_last);
  add_checkpoint(lines, options.checkpoint);
  lines.add("the task weighs batches", task.weighs_batches());
  Scalars facts;
  task.remember_data(facts);
  lines.add_function("initial_weights.load", options.initial_weights.load)
      .add_function("initial_weights.complete", options.initial_weights.complete)
      .add_function("checks.before_load", options.checks.before_load)
      .add("the thread's seed (manual_seed)", current_seed())
      .add("samples per epoch of the task",
           fmt::format("{}", fmt::join(task.samples_per_epoch(), ", ")))
      .add("data of the task", checkpoint::json_of(facts).dump());
  return lines.text();
}

}  // namespace

void compare_options(const Context& context, const TrainerOptions& options,
                     const tasks::Task& task) {
  if (context.world_size() == 1 || context.device().is_planned()) return;
  const auto difference = find_different_line(context.communicator(), describe_run(options, task));
  if (!difference) return;
  fail(ErrorCode::configuration,
       "{}: ranks 0 and {} have different options: rank 0 has \"{}\" where rank {} has \"{}\"; "
       "give all ranks the same",
       options.names.source, difference->rank, difference->first, difference->rank,
       difference->other);
}

}  // namespace tessera

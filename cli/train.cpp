// `tessera train`: a recipe from its first step, or from where its checkpoints stand, to its last.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/accelerate_config.h"
#include "cli/interruption.h"
#include "cli/memory_log.h"
#include "cli/metrics.h"
#include "cli/progress.h"
#include "cli/rank_threads.h"
#include "cli/recipe.h"
#include "cli/subcommands.h"
#include "cli/training_run.h"

namespace tessera::cli {
namespace {

constexpr int signal_exit_base = 128;

struct TrainCommand {
  std::string file;
  std::vector<std::string> overrides;
  std::string device;
  std::string config_file;

  [[nodiscard]] int run() const {
    const SignalThread signals;
    std::vector<std::string> settings = overrides;
    if (!device.empty()) settings.push_back("train.device=" + device);
    const Recipe recipe = load_recipe(file, settings, chosen_config_file(config_file));
    const comm::World world = training_world();
    validate(recipe, world.size);
    return run_ranks(recipe, world,
                     [&](const Context& context) { return run_rank(recipe, context); });
  }

  [[nodiscard]] static int run_rank(const Recipe& recipe, const Context& context) {
    TrainingRun training(recipe, context);
    const std::vector<std::string> notes = training.resume();
    training.prepare_folder();
    const InterruptionWatch watch;
    std::optional<MetricsWriter>
        metrics;  // before the first word, so that a refusal is the only one
    if (recipe.log.jsonl && context.is_main())
      metrics.emplace(*recipe.log.jsonl, training.position().steps);
    std::optional<MemoryLog> memory;
    if (recipe.log.memory && context.is_main())
      memory.emplace(recipe, context, training.position().steps);

    Progress progress({.first_step = training.position().steps,
                       .steps = recipe.train.steps,
                       .every = recipe.log.every,
                       .shown = context.is_main(),
                       .descriptor = 2,
                       .animated = animated_by_default()});
    progress.note(training.describe());
    for (const std::string& note : configuration_notes(recipe, context.world_size()))
      progress.note(note);
    for (const std::string& note : notes) progress.note(note);
    return loop(recipe, training, progress, metrics, memory);
  }

  static int loop(const Recipe& recipe, TrainingRun& training, Progress& progress,
                  std::optional<MetricsWriter>& metrics, std::optional<MemoryLog>& memory) {
    const std::int64_t every = recipe.checkpoint.dir ? recipe.checkpoint.every : 0;
    std::int64_t saved_at = training.position().steps;
    while (training.position().steps < recipe.train.steps) {
      const StepMetrics step = training.step();
      if (metrics) metrics->write(step);
      progress.step(step);
      if (memory) {
        if (const auto warning = memory->end_step(training)) progress.note(*warning);
      }
      const bool last = step.step == recipe.train.steps;
      const bool interrupted = training.interruption() != 0 && !last;
      const bool due = every > 0 && (step.step % every == 0 || last);
      const bool saves = due || (every > 0 && (interrupted || training.save_requested()));
      const bool evaluation =
          recipe.train.eval_every > 0 && step.step % recipe.train.eval_every == 0;
      // Whoever asked to stop waits for no evaluation of keep_best's.
      const bool ranked = due && recipe.checkpoint.keep_best > 0 && !interrupted;
      std::optional<tasks::Evaluation> found;
      if (training.evaluates() && (last || evaluation || ranked)) {
        found = evaluate(training, step.step, progress, metrics);
      }
      if (saves) {
        for (const std::string& note : training.save(found)) progress.note(note);
        saved_at = step.step;
      } else if (training.save_requested()) {
        progress.note(
            "a save was asked for; nothing saved, since there is no checkpoint.dir, or "
            "checkpoint.every is 0");
      }
      for (const std::string& note :
           last || interrupted ? training.finish_save() : training.finished_save()) {
        progress.note(note);
      }
      if (interrupted) {
        progress.note(
            every > 0 ? fmt::format("stopped by signal {} after saving step {}",
                                    training.interruption(), saved_at)
                      : fmt::format(
                            "stopped by signal {}; nothing saved, since checkpoint.dir is not set",
                            training.interruption()));
        return signal_exit_base + training.interruption();
      }
    }
    if (const auto exported = training.export_weights()) progress.note(*exported);
    return 0;
  }

  static tasks::Evaluation evaluate(TrainingRun& training, std::int64_t step, Progress& progress,
                                    std::optional<MetricsWriter>& metrics) {
    tasks::Evaluation found = training.evaluate();
    if (metrics) metrics->write_evaluation(step, found.numbers);
    std::string note;
    for (const auto& [name, number] : found.numbers) {
      note += fmt::format("{}{} {:.4f}", note.empty() ? "" : ", ",
                          name == "valid_loss" ? "validation loss" : name, number);
    }
    progress.note(fmt::format("step {}: {}", step, note));
    return found;
  }
};

}  // namespace

Command describe_train() {
  const auto options = std::make_shared<TrainCommand>();
  return {.arguments = {{.name = "recipe",
                         .target = &options->file,
                         .help = "The recipe",
                         .type = "FILE",
                         .required = true},
                        {.name = "--set",
                         .target = &options->overrides,
                         .help = "Override a key, as in train.steps=100; repeatable",
                         .type = "KEY=VALUE"},
                        {.name = "--device",
                         .target = &options->device,
                         .help = "Where to compute; the same as train.device",
                         .type = "auto|cpu|cuda"},
                        config_file_argument(&options->config_file)},
          .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

}  // namespace tessera::cli

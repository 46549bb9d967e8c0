// `tessera train`: runs a recipe from its first step, or from its last checkpoint, to its last
// step.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <variant>

#include "base/counted.h"
#include "cli/run_notes.h"
#include "cli/subcommands.h"
#include "logs/progress.h"
#include "logs/run_logs.h"
#include "planner/memory_check.h"
#include "training/interruption.h"
#include "training/rank_threads.h"
#include "training/recipe/accelerate/config.h"
#include "training/recipe/recipe.h"
#include "training/recipe_trainer.h"

namespace tessera::cli {
namespace {

using logs::Progress;
using training::Recipe;

constexpr int signal_exit_base = 128;

struct TrainCommand {
  std::string file;
  std::vector<std::string> overrides;
  std::string device;
  std::string config_file;
  std::string metrics;

  [[nodiscard]] int run() const {
    const training::SignalThread signals;
    std::vector<std::string> settings = overrides;
    if (!device.empty()) settings.push_back("train.device=" + device);
    const Recipe recipe =
        training::load_recipe(file, settings, training::chosen_config_file(config_file));
    const comm::World world = training::training_world();
    training::validate(recipe, world.size);
    return training::run_ranks(
        recipe, world, [&](const Context& context) { return run_rank(recipe, context, metrics); });
  }

  [[nodiscard]] static int run_rank(const Recipe& recipe, const Context& context,
                                    const std::string& metrics) {
    planner::check_memory(recipe, context, training::ranks_of_process());
    Trainer training = training::make_trainer(recipe, context);
    RunEvents events = training.resume();
    put_restart_last(events);
    for (RunEvent& event : training.prepare_folder()) events.push_back(std::move(event));
    const training::InterruptionWatch watch(
        context.world().local_rank == 0 ? consequence_of_signal(training) : nullptr);
    // Before the first note, so that an error is printed alone.
    logs::RunLogs logs(recipe, training, metrics);

    Progress progress({.first_step = training.position().steps,
                       .steps = recipe.train.steps,
                       .every = recipe.log.every,
                       .shown = context.is_main(),
                       .descriptor = 2,
                       .animated = logs::animated_by_default()});
    progress.note(describe(training, recipe));
    if (const std::string data = describe_data(training.task().data_counts()); !data.empty())
      progress.note(data);
    if (context.is_main()) {
      for (const std::string& note : training.task().data_notes()) progress.note(note);
    }
    for (const std::string& note : training::configuration_notes(recipe, context.world_size()))
      progress.note(note);
    show(events, recipe, progress);
    for (const std::string& note : logs.notes()) progress.note(note);
    if (training.position().steps >= recipe.train.steps)
      progress.note(nothing_left(recipe, training));
    const int code = loop(recipe, training, progress, logs);
    // A run that a signal has stopped ends with the code of the signal.
    const bool by_signal = code != 0 && training.interruption() != SIGPIPE;
    for (const std::string& note : logs.finish(by_signal)) progress.note(note);
    return code;
  }

  // The note of a restart comes after those of the step that was found.
  static void put_restart_last(RunEvents& resumed) {
    if (resumed.empty()) return;
    const auto* restarted = std::get_if<events::Restarted>(&resumed.front());
    if (restarted == nullptr || !restarted->found_save) return;
    std::rotate(resumed.begin(), resumed.begin() + 1, resumed.end());
  }

  static void show(const RunEvents& events, const Recipe& recipe, Progress& progress) {
    for (const RunEvent& event : events) progress.note(note_of(event, recipe));
  }

  static const char* consequence_of_signal(const Trainer& training) {
    return training.saves()
               ? "the run saves its last finished step and ends; send it again to end at once"
               : "the run ends and saves nothing; send it again to end at once";
  }

  static std::string nothing_left(const Recipe& recipe, const Trainer& training) {
    const std::int64_t wanted = recipe.train.steps;
    if (training.resumed_from().empty()) return "train.steps is 0: there is nothing to train";
    const std::string& step = training.resumed_from();
    const std::int64_t done = training.position().steps;
    if (done > wanted) {
      return fmt::format(
          "{} has {}, and train.steps is {}: nothing is left to train; raise "
          "train.steps to go on",
          step, counted(done, "step"), wanted);
    }
    return fmt::format(
        "{} has {} of train.steps: nothing is left to train; raise train.steps to "
        "go on",
        step, wanted == 1 ? "the 1 step" : fmt::format("all {} steps", wanted));
  }

  static int loop(const Recipe& recipe, Trainer& training, Progress& progress,
                  logs::RunLogs& logs) {
    const std::int64_t every = recipe.checkpoint.dir ? recipe.checkpoint.every : 0;
    const std::int64_t first_step = training.position().steps;
    std::int64_t saved_at = first_step;
    while (training.position().steps < recipe.train.steps) {
      const std::optional<StepMetrics> taken = training.step();
      if (!taken) return stop_within_step(recipe, training, progress, saved_at);
      const StepMetrics& step = *taken;
      const std::vector<std::string> warnings = logs.write(step);
      progress.step(step);
      for (const std::string& warning : warnings) progress.note(warning);
      if (!step.rebalanced_to.empty()) progress.note(note_of_parts(step));
      if (step.spike) progress.note(note_of(*step.spike));
      // The checkpoint that the run went back to has everything that could be saved.
      if (training.position().steps < step.step) {
        saved_at = training.position().steps;
        if (training.interruption() != 0) {
          return stop_within_step(recipe, training, progress, saved_at);
        }
        show(training.finished_save(), recipe, progress);
        continue;
      }
      const bool last = step.step == recipe.train.steps;
      bool interrupted = training.interruption() != 0 && !last;
      const bool due = every > 0 && (step.step % every == 0 || last);
      const bool evaluation =
          recipe.train.eval_every > 0 && step.step % recipe.train.eval_every == 0;
      const bool ranked = due && recipe.checkpoint.keep_best > 0;
      std::optional<tasks::Evaluation> found;
      // A run that must stop does not evaluate.
      if (training.evaluates() && (last || evaluation || ranked) && training.interruption() == 0) {
        found = evaluate(training, step.step, progress, logs);
        interrupted = training.interruption() != 0 && !last;
      }
      if (due || (every > 0 && (interrupted || training.save_requested()))) {
        show(training.save(found), recipe, progress);
        saved_at = step.step;
      } else if (training.save_requested()) {
        progress.note(std::string("a save was requested; nothing saved, because ") +
                      why_nothing_is_saved(recipe));
      }
      show(last || interrupted ? training.finish_save() : training.finished_save(), recipe,
           progress);
      logs.end_step();
      if (interrupted) return stopped(recipe, training, progress, saved_at);
    }
    const RunEvents exported = training.export_weights();
    show(exported, recipe, progress);
    if (exported.empty() && every == 0 && training.position().steps > first_step) {
      progress.note(recipe.checkpoint.dir
                        ? "nothing saved: checkpoint.every is 0, and checkpoint.export is not set"
                        : "nothing saved: neither checkpoint.dir nor checkpoint.export is set");
    }
    return 0;
  }

  // The last finished step is saved unless it was already.
  static int stop_within_step(const Recipe& recipe, Trainer& training, Progress& progress,
                              std::int64_t saved_at) {
    if (training.saves() && training.position().steps > saved_at) {
      show(training.save(), recipe, progress);
      saved_at = training.position().steps;
    }
    show(training.finish_save(), recipe, progress);
    return stopped(recipe, training, progress, saved_at);
  }

  static int stopped(const Recipe& recipe, const Trainer& training, Progress& progress,
                     std::int64_t saved_at) {
    const std::string cause = cause_of_stop(training);
    if (!training.saves()) {
      progress.note(fmt::format("stopped by {}; nothing saved, because {}", cause,
                                why_nothing_is_saved(recipe)));
    } else if (saved_at == 0) {
      progress.note(fmt::format("stopped by {} within the first step; nothing saved", cause));
    } else {
      progress.note(fmt::format("stopped by {} after saving step {}", cause, saved_at));
    }
    return signal_exit_base + training.interruption();
  }

  // SIGPIPE is not sent: RunLogs sets it.
  static std::string cause_of_stop(const Trainer& training) {
    const int signal = training.interruption();
    return signal == SIGPIPE ? "the end of a log's reader" : fmt::format("signal {}", signal);
  }

  static const char* why_nothing_is_saved(const Recipe& recipe) {
    return recipe.checkpoint.dir ? "checkpoint.every is 0" : "checkpoint.dir is not set";
  }

  // None if a signal has ended the evaluation.
  static std::optional<tasks::Evaluation> evaluate(Trainer& training, std::int64_t step,
                                                   Progress& progress, logs::RunLogs& logs) {
    tasks::Evaluation found = training.evaluate();
    if (found.numbers.empty()) {
      progress.note(fmt::format("step {}: the evaluation is left out, because of {}", step,
                                cause_of_stop(training)));
      return std::nullopt;
    }
    logs.write_evaluation(step, found);
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
                         .help = "The device; the same as train.device",
                         .type = "auto|cpu|cuda"},
                        config_file_argument(&options->config_file),
                        {.name = "--metrics",
                         .target = &options->metrics,
                         .help = "Write the lines of log.jsonl to this file or pipe, too; a run "
                                 "ends when the reader of the pipe does",
                         .type = "FILE"}},
          .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

}  // namespace tessera::cli

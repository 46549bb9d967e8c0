// Writes the logs of a run, one after the other.
#include "logs/run_logs.h"

#include <fmt/format.h>

#include "logs/output_files.h"

namespace tessera::logs {

namespace {

void check_output_files(const training::LogRecipe& log) {
  OutputFiles files;
  const auto add = [&](const char* key, const std::optional<std::string>& path) {
    if (path) files.add_checked(fmt::format("{}: {}", key, *path), *path);
  };
  add("log.jsonl", log.jsonl);
  add("log.csv", log.csv);
  add("log.trace", log.trace);
  add("log.summary", log.summary);
  add("log.memory", log.memory);
  if (log.tensorboard) {
    const std::filesystem::path folder = *log.tensorboard;
    files.add_checked("log.tensorboard: " + *log.tensorboard, folder / TensorboardLog::file_name);
  }
}

}  // namespace

RunLogs::RunLogs(const training::Recipe& recipe, Trainer& training)
    : training_(training), recipe_(recipe.log) {
  const training::LogRecipe& log = recipe_;
  const Context& context = training.context();
  const std::int64_t done = training.position().steps;
  if (context.is_main()) {
    check_output_files(log);
    open(done);
  }
  if (log.trace) trace_.emplace(recipe, context, done);
  if (log.trace || log.summary) {
    summary_.emplace(recipe, context, done);
    training.record();
  }
  if (log.memory && context.is_main()) memory_.emplace(recipe, context, done);
  if (jsonl_) jsonl_->begin();
  if (csv_) csv_->begin();
  if (tensorboard_) tensorboard_->begin();
  if (trace_) trace_->begin(context.world_size());
}

void RunLogs::open(std::int64_t step) {
  const training::LogRecipe& log = recipe_;
  if (log.jsonl) jsonl_.emplace(*log.jsonl, step);
  if (log.csv) csv_.emplace(*log.csv, step);
  if (log.tensorboard) tensorboard_.emplace(*log.tensorboard, step);
}

// A roll-back removes the lines of the steps that are taken again, as a resume does. A pipe keeps
// them.
void RunLogs::write_spike(const Spike& spike) {
  const auto write = [&spike](auto& log, const std::optional<std::string>& path) {
    if (!log) return;
    if (spike.done == SpikeAction::rollback && log->file().is_regular()) {
      log.emplace(path.value(), spike.to);
      log->begin();
    }
    log->write_spike(spike);
  };
  write(jsonl_, recipe_.jsonl);
  write(csv_, recipe_.csv);
  write(tensorboard_, recipe_.tensorboard);
  if (summary_) summary_->add(spike);
}

std::vector<std::string> RunLogs::notes() const {
  std::vector<std::string> notes;
  const auto look = [&](const char* key, const LogFile& file) {
    if (file.set_aside().empty()) return;
    notes.push_back(
        fmt::format("{}: the file of an earlier run is now {}", key, file.set_aside().string()));
  };
  if (jsonl_) look("log.jsonl", jsonl_->file());
  if (csv_) look("log.csv", csv_->file());
  if (tensorboard_) look("log.tensorboard", tensorboard_->file());
  if (trace_ && trace_->file()) look("log.trace", *trace_->file());
  return notes;
}

std::vector<std::string> RunLogs::write(const StepMetrics& metrics) {
  if (jsonl_) jsonl_->write(metrics);
  if (csv_) csv_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
  if (metrics.spike) write_spike(*metrics.spike);
  if (summary_) summary_->end_step(training_.recorder().last());
  std::vector<std::string> notes;
  if (memory_) {
    if (auto warning = memory_->end_step(training_)) notes.push_back(std::move(*warning));
  }
  return notes;
}

void RunLogs::write_evaluation(std::int64_t step, const tasks::Evaluation& found) {
  if (jsonl_) jsonl_->write_evaluation(step, found.numbers);
  if (csv_) csv_->write_evaluation(step, found.numbers);
  if (tensorboard_) tensorboard_->write_evaluation(step, found.numbers);
}

void RunLogs::end_step() {
  if (trace_) trace_->end_step(training_);
}

std::vector<std::string> RunLogs::finish() {
  return summary_ ? summary_->finish(training_) : std::vector<std::string>{};
}

}  // namespace tessera::logs

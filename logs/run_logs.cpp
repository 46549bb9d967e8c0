// Writes the logs of a run, one after the other.
#include "logs/run_logs.h"

#include <fmt/format.h>

#include <csignal>

#include "comm/communicator.h"
#include "logs/output_files.h"
#include "training/interruption.h"

namespace tessera::logs {

namespace {

constexpr const char* metrics_option = "--metrics";

void check_output_files(const training::LogRecipe& log, const std::optional<std::string>& metrics) {
  OutputFiles files;
  const auto add = [&](const char* key, const std::optional<std::string>& path) {
    if (path) files.add_checked(fmt::format("{}: {}", key, *path), *path);
  };
  add("log.jsonl", log.jsonl);
  add(metrics_option, metrics);
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

RunLogs::RunLogs(const training::Recipe& recipe, Trainer& training, const std::string& metrics)
    : training_(training),
      recipe_(recipe.log),
      metrics_file_(metrics.empty() ? std::nullopt : std::optional(metrics)) {
  const training::LogRecipe& log = recipe_;
  const Context& context = training.context();
  const std::int64_t done = training.position().steps;
  if (context.is_main()) {
    check_output_files(log, metrics_file_);
    open(done);
  }
  if (log.trace) trace_.emplace(recipe, context, done);
  if (log.trace || log.summary) {
    summary_.emplace(recipe, context, done);
    training.record();
  }
  if (log.memory && context.is_main()) memory_.emplace(recipe, context, done);
  if (jsonl_) jsonl_->begin();
  if (metrics_) metrics_->begin();
  if (csv_) csv_->begin();
  if (tensorboard_) tensorboard_->begin();
  if (trace_) trace_->begin(context.world_size());
}

void RunLogs::open(std::int64_t step) {
  const training::LogRecipe& log = recipe_;
  if (log.jsonl) jsonl_.emplace("log.jsonl", *log.jsonl, step);
  if (metrics_file_) metrics_.emplace(metrics_option, *metrics_file_, step);
  if (log.csv) csv_.emplace(*log.csv, step);
  if (log.tensorboard) tensorboard_.emplace(*log.tensorboard, step);
}

// A full pipe waits for its reader, however slow.
template <class Write>
void RunLogs::to_each(const Write& write) {
  std::optional<comm::OutsideWait> reader;
  const auto to = [&](auto& log, const auto&... place) {
    if (!log) return;
    if (!log->file().is_regular() && !reader) reader.emplace(training_.context().communicator());
    try {
      write(log, place...);
    } catch (const LostReader& lost) {
      lost_reader_ = lost.what();
      log.reset();
      training::InterruptionWatch::note_lost_reader();
    }
  };
  to(jsonl_, "log.jsonl", recipe_.jsonl.value_or(""));
  to(metrics_, metrics_option, metrics_file_.value_or(""));
  to(csv_, recipe_.csv.value_or(""));
  to(tensorboard_, recipe_.tensorboard.value_or(""));
}

// A roll-back removes the lines of the steps that are taken again, as a resume does. A pipe keeps
// them.
void RunLogs::write_spike(const Spike& spike) {
  const bool rollback = spike.done == SpikeAction::rollback;
  to_each([&](auto& log, const auto&... place) {
    if (rollback && log->file().is_regular()) {
      log.emplace(place..., spike.to);
      log->begin();
    }
    log->write_spike(spike);
  });
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
  if (metrics_) look(metrics_option, metrics_->file());
  if (csv_) look("log.csv", csv_->file());
  if (tensorboard_) look("log.tensorboard", tensorboard_->file());
  if (trace_ && trace_->file()) look("log.trace", *trace_->file());
  return notes;
}

std::vector<std::string> RunLogs::write(const StepMetrics& metrics) {
  to_each([&](auto& log, const auto&...) { log->write(metrics); });
  if (metrics.spike) write_spike(*metrics.spike);
  if (summary_) {
    summary_->end_step(training_.recorder().last());
    summary_->add_parts(metrics);
  }
  std::vector<std::string> notes;
  if (memory_) {
    if (auto warning = memory_->end_step(training_)) notes.push_back(std::move(*warning));
  }
  return notes;
}

void RunLogs::write_evaluation(std::int64_t step, const tasks::Evaluation& found) {
  to_each([&](auto& log, const auto&...) { log->write_evaluation(step, found.numbers); });
}

void RunLogs::end_step() {
  if (trace_) trace_->end_step(training_);
}

std::vector<std::string> RunLogs::finish(bool by_signal) {
  std::vector<std::string> notes;
  if (summary_) notes = summary_->finish(training_);
  // The ranks agree on an interruption, and end together by the error of rank 0, which has the
  // logs.
  if (training_.interruption() == SIGPIPE) {
    constexpr comm::Tag tag{0, 0, comm::Phase::metrics};
    lost_reader_ = training_.context().communicator().exchange(lost_reader_, tag).front();
  }
  if (lost_reader_.empty()) return notes;
  TESSERA_CHECK(by_signal, ErrorCode::runtime, "{}", lost_reader_);
  notes.push_back(lost_reader_);
  return notes;
}

}  // namespace tessera::logs

// All files that a run's recipe asks for under `log`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "logs/csv_log.h"
#include "logs/memory_log.h"
#include "logs/metrics.h"
#include "logs/run_summary.h"
#include "logs/tensorboard_log.h"
#include "logs/trace_log.h"
#include "trainer/trainer.h"
#include "training/recipe/recipe.h"

namespace tessera::logs {

class RunLogs {
 public:
  // Opens all files before it changes any of them. Throws Error(configuration) if one cannot be
  // written, or has another format. Steps are recorded only if a log needs it. `metrics` is a
  // second file for the lines of log.jsonl, or nothing.
  RunLogs(const training::Recipe& recipe, Trainer& training, const std::string& metrics = {});
  // Notes for the user about the files that existed already.
  [[nodiscard]] std::vector<std::string> notes() const;

  // Call it after the step, before anything else. Returns notes for the user. If the reader of a
  // pipe has ended, the run is interrupted, so that it saves its last step, and finish() throws.
  std::vector<std::string> write(const StepMetrics& metrics);
  void write_evaluation(std::int64_t step, const tasks::Evaluation& found);
  // Collective, after everything that belongs to the step. Throws if a file system refuses, as the
  // two above do.
  void end_step();
  // Collective, at the end. Notes for the user, among them that a reader of a pipe has ended, if
  // the run ends `by_signal`; otherwise that is an Error.
  std::vector<std::string> finish(bool by_signal);

 private:
  template <class Write>
  void to_each(const Write& write);
  void write_spike(const Spike& spike);
  // Rank 0's logs of steps, as a run opens them that goes on from this step.
  void open(std::int64_t step);

  Trainer& training_;
  const training::LogRecipe recipe_;
  const std::optional<std::string> metrics_file_;
  std::string lost_reader_;             // what finish() throws, or nothing
  std::optional<MetricsWriter> jsonl_;  // rank 0's, like all files that do not depend on ranks
  std::optional<MetricsWriter> metrics_;
  std::optional<CsvLog> csv_;
  std::optional<TensorboardLog> tensorboard_;
  std::optional<MemoryLog> memory_;
  std::optional<TraceLog> trace_;
  std::optional<RunSummary> summary_;
};

}  // namespace tessera::logs

// Everything that a run's recipe wants written down, under `log`.
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
#include "training/recipe/recipe.h"
#include "training/trainer.h"

namespace tessera::cli {

class RunLogs {
 public:
  // Opens all of them before it changes any. Throws Error(configuration) when one cannot be
  // written, or is something else. Steps are recorded where somebody wants to know.
  RunLogs(const Recipe& recipe, TrainingRun& training);
  // What the user should know of the files that were there.
  [[nodiscard]] std::vector<std::string> notes() const;

  // When the step is done, before anything else happens. Notes for the user.
  std::vector<std::string> write(const StepMetrics& metrics);
  void write_evaluation(std::int64_t step, const tasks::Evaluation& found);
  // Collective, when all that belongs to the step is done. Throws when a file system refuses, as
  // the two above do.
  void end_step();
  // Collective, at the end. Notes for the user.
  std::vector<std::string> finish();

 private:
  TrainingRun& training_;
  std::optional<MetricsWriter> jsonl_;  // rank 0's, the files that have no ranks in them
  std::optional<CsvLog> csv_;
  std::optional<TensorboardLog> tensorboard_;
  std::optional<MemoryLog> memory_;
  std::optional<TraceLog> trace_;
  std::optional<RunSummary> summary_;
};

}  // namespace tessera::cli

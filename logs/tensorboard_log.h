// The folder for the recipe's log.tensorboard: one event file with the numbers of log.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "logs/log_file.h"
#include "logs/metrics.h"

namespace tessera::logs {

class TensorboardLog {
 public:
  // As in MetricsWriter, in a file of this folder.
  TensorboardLog(const std::filesystem::path& folder, std::int64_t resume_step);

  void begin();
  [[nodiscard]] const LogFile& file() const { return file_; }
  // Both throw the errors of LogFile::append() if the file system refuses (a full disk).
  void write(const StepMetrics& metrics);
  void write_spike(const Spike& spike);  // as MetricsWriter
  void write_evaluation(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& numbers);

  // TensorBoard reads every file with ".tfevents." in its name.
  static constexpr const char* file_name = "events.out.tfevents.tessera";

 private:
  LogFile file_;
};

}  // namespace tessera::logs

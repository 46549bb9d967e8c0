// The table for the recipe's log.csv: one row per step, and one for each number of an evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "logs/log_file.h"
#include "logs/metrics.h"

namespace tessera::logs {

class CsvLog {
 public:
  // As in MetricsWriter.
  CsvLog(const std::filesystem::path& path, std::int64_t resume_step);

  void begin();
  [[nodiscard]] const LogFile& file() const { return file_; }
  // Both throw the errors of LogFile::append() if the file system refuses (a full disk).
  void write(const StepMetrics& metrics);
  void write_spike(const Spike& spike);  // as MetricsWriter
  // Name and number, in the last two columns.
  void write_evaluation(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& numbers);

 private:
  LogFile file_;
};

}  // namespace tessera::logs

// The table behind the recipe's log.csv: a row a step, and one for each number of an evaluation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "logs/log_file.h"
#include "logs/metrics.h"

namespace tessera::cli {

class CsvLog {
 public:
  // As MetricsWriter does it.
  CsvLog(const std::filesystem::path& path, std::int64_t resume_step);

  void begin();
  [[nodiscard]] const LogFile& file() const { return file_; }
  // Both throw what LogFile::append() does when the file system refuses (a full disk).
  void write(const StepMetrics& metrics);
  // In the last two columns, name and number.
  void write_evaluation(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& numbers);

 private:
  LogFile file_;
};

}  // namespace tessera::cli

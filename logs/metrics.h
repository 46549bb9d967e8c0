// One JSON object a step, and one for each evaluation, for programs: the file behind the recipe's
// log.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "logs/log_file.h"
#include "training/step_metrics.h"

namespace tessera::cli {

// One line of JSON without its newline. Numbers have 9 significant digits, which a float survives;
// those that JSON cannot say (NaN, infinities) are null.
std::string to_json_line(const StepMetrics& metrics);

class MetricsWriter {
 public:
  // `resume_step` is the last step that the run has behind it: lines of later steps, written before
  // an interruption and now to be computed again, are removed, and so is everything when it is 0.
  // Throws Error(configuration) when the file cannot be written, or holds something else than
  // metrics.
  MetricsWriter(const std::filesystem::path& path, std::int64_t resume_step);

  void begin() { file_.begin(); }  // logs/log_file.h
  [[nodiscard]] const LogFile& file() const { return file_; }
  // Both throw what LogFile::append() does when the file system refuses (a full disk).
  void write(const StepMetrics& metrics);
  // {"step": 50, "valid_loss": 1.25}: a line of its own behind the step's.
  void write_evaluation(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& numbers);

 private:
  LogFile file_;
};

}  // namespace tessera::cli

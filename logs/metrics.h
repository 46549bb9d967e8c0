// One JSON object per step and per evaluation, for programs: the file for the recipe's log.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "logs/log_file.h"
#include "trainer/step_metrics.h"

namespace tessera::logs {

// One line of JSON without its newline. Numbers have 9 significant digits, enough for a float;
// numbers that JSON does not have (NaN, infinities) are null.
std::string to_json_line(const StepMetrics& metrics);

class MetricsWriter {
 public:
  // `resume_step` is the last step that the run has done. Lines of later steps, which were written
  // before an interruption and will be computed again, are removed; if it is 0, all lines are.
  // Throws Error(configuration) if the file cannot be written, or is not a file of metrics. `key`
  // is the recipe's key or the option, for messages.
  MetricsWriter(const std::string& key, const std::filesystem::path& path,
                std::int64_t resume_step);

  void begin() { file_.begin(); }  // logs/log_file.h
  [[nodiscard]] const LogFile& file() const { return file_; }
  // Both throw the errors of LogFile::append() if the file system refuses (a full disk).
  void write(const StepMetrics& metrics);
  // {"step": 50, "valid_loss": 1.25}: its own line after the step's.
  void write_evaluation(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& numbers);
  // A step that was not used: its own line, behind the step's; of a roll-back behind that of the
  // step from which the run goes on.
  void write_spike(const Spike& spike);

 private:
  LogFile file_;
};

}  // namespace tessera::logs

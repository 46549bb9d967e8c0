// One JSON object a step, and one for each evaluation, for programs: the file behind the recipe's
// log.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/log_file.h"

namespace tessera::cli {

struct StepMetrics {
  std::int64_t step = 0;  // from 1
  float loss = 0;         // mean over the world's tokens
  float grad_norm = 0;    // before clipping
  double lr = 0;
  double tokens_per_s = 0;   // of the whole world
  double samples_per_s = 0;  // of the whole world
  double step_s = 0;
  // The most that a rank took so far: resident memory of its process; on a GPU everything from the
  // arena, blocks in the pools' caches included.
  std::int64_t peak_bytes = 0;
  std::int64_t cached_bytes = 0;  // free blocks that a rank's pool keeps, the largest rank's
  std::int64_t comm_bytes = 0;    // moved by a rank's collectives in this step
  double exposed_comm_s = 0;      // that computation waited for communication
  double data_wait_s = 0;         // that the rank that waited longest waited for its data
  // fp16: what this step's loss was multiplied by, and the steps that overflowed until now.
  std::optional<double> loss_scale = std::nullopt;
  std::int64_t skipped_steps = 0;
};

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

  void begin() { file_.begin(); }  // cli/log_file.h
  [[nodiscard]] const LogFile& file() const { return file_; }
  // Both throw what LogFile::append() does when the file system refuses (a full disk).
  void write(const StepMetrics& metrics);
  // {"step": 50, "valid_loss": 1.25}: a line of its own behind the step's.
  void write_evaluation(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& numbers);

 private:
  LogFile file_;
};

// The peak resident memory of this process so far.
std::int64_t peak_resident_bytes();

}  // namespace tessera::cli

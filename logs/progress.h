// The progress of a run for people: one line that is redrawn on a terminal, otherwise a plain line
// every few steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "logs/metrics.h"

namespace tessera::logs {

struct ProgressOptions {
  std::int64_t first_step = 0;  // steps that the run has already done
  std::int64_t steps = 0;       // the last step's number
  std::int64_t every = 10;      // steps between plain lines
  bool shown = true;            // rank 0 shows progress, the others do not
  int descriptor = 2;           // where to
  bool animated = false;        // see animated_by_default()
};

// A terminal that can redraw a line.
bool animated_by_default(int descriptor = 2);

class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  ~Progress();  // leaves the cursor on a new line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepMetrics& metrics);
  // A line that stays above the progress line: "saved out/step-50".
  void note(const std::string& line);

  // The parts of the line, joined, without the bar. Public for tests.
  [[nodiscard]] std::string line(const StepMetrics& metrics) const;

 private:
  void draw();

  ProgressOptions options_;
  std::chrono::steady_clock::time_point last_draw_{};
  double smooth_step_s_ = 0;
  std::string current_;
  bool drawn_ = false;
};

}  // namespace tessera::logs

// The progress of `tessera evaluate`.
#pragma once

#include <chrono>
#include <cstdint>

#include "logs/progress.h"
#include "sharding/context/context.h"

namespace tessera::cli {

// The progress of a long evaluation on stderr: redrawn on a terminal, otherwise a line from time to
// time. Counts the batches of the first rank; all ranks have the same number.
class EvaluationProgress {
 public:
  EvaluationProgress(const Context& context, std::int64_t tokens)
      : shown_(context.is_main()), ranks_(context.world_size()), tokens_(tokens) {}
  ~EvaluationProgress();
  EvaluationProgress(const EvaluationProgress&) = delete;
  EvaluationProgress& operator=(const EvaluationProgress&) = delete;

  void add(std::int64_t tokens);

 private:
  static constexpr std::chrono::milliseconds redraw_interval{200}, line_interval{10'000};

  bool shown_;
  std::int64_t ranks_, tokens_;
  std::int64_t done_ = 0;
  bool animated_ = logs::animated_by_default();
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::cli

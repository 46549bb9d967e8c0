// The file for the recipe's log.trace: how the steps of log.trace_steps spend their time, on all
// ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "logs/log_file.h"
#include "sharding/profiler/step_recorder.h"
#include "training/recipe/recipe.h"

namespace tessera {
class Trainer;
}

namespace tessera::logs {

// For one rank. Rank 0 has the file, which is valid JSON after each step.
class TraceLog {
 public:
  // Steps up to `steps_done` of a resumed run stay in the file. Throws Error(configuration) if rank
  // 0 cannot write it, or if it is not a trace of a run.
  TraceLog(const training::Recipe& recipe, const Context& context, std::int64_t steps_done);

  void begin(int ranks);
  [[nodiscard]] const std::optional<LogFile>& file() const { return file_; }
  // Collective. Writes the step and everything that came after it. Throws if the file system
  // refuses.
  void end_step(const Trainer& training);

 private:
  void end_without_step(std::int64_t step);

  std::optional<LogFile> file_;
  std::int64_t first_ = 0, last_ = 0;
  std::int64_t traced_ = 0;      // the last one; steps after a roll-back come again
  std::int64_t body_bytes_ = 0;  // of the file, without its closing text
};

}  // namespace tessera::logs

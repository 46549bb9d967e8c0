// The file behind the recipe's log.trace: what the steps of log.trace_steps spent their time on, of
// all ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "logs/log_file.h"
#include "sharding/profiler/step_recorder.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

class TrainingRun;

// Of one rank; rank 0 has the file, which is whole JSON after each step that it gets.
class TraceLog {
 public:
  // Steps up to `steps_done`, of a run that goes on, stay in the file. Throws Error(configuration)
  // when rank 0 cannot write it, or it is something else than a trace of a run.
  TraceLog(const Recipe& recipe, const Context& context, std::int64_t steps_done);

  void begin(int ranks);
  [[nodiscard]] const std::optional<LogFile>& file() const { return file_; }
  // Collective: with all that came after the step. Throws when the file system refuses.
  void end_step(const TrainingRun& training);

 private:
  void end_without_step(std::int64_t step);

  std::optional<LogFile> file_;
  std::int64_t first_ = 0, last_ = 0;
  std::int64_t body_bytes_ = 0;  // of the file, without its end
};

}  // namespace tessera::cli

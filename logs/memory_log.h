// The file behind the recipe's log.memory: what a run's memory was planned to be, and what it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

class TrainingRun;

// Of rank 0, which has it after its second step (the only one, when there is no second): by then
// all is there that stays.
class MemoryLog {
 public:
  // Plans the run, which has `steps_done` behind it. Throws Error(configuration) when the file
  // cannot be written.
  MemoryLog(const Recipe& recipe, const Context& context, std::int64_t steps_done);

  // Writes the file when it is time. A text for the user when plan and measurement differ: in a
  // kind that is planned to the byte, or by more than 2 % in total. Throws when the file system
  // refuses, as LogFile::append() does.
  std::optional<std::string> end_step(const TrainingRun& training);

 private:
  std::string path_;
  std::int64_t steps_left_ = 0;
  bool batches_vary_ = false;  // plans are of the longest that there may be
  MemoryPlan planned_;
};

// The text, or none where `measured` is what was planned; with `at_most`, where its total is not
// above the plan's.
std::optional<std::string> memory_difference(const RankMemory& planned, const RankMemory& measured,
                                             bool at_most = false);

}  // namespace tessera::cli

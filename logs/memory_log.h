// The file for the recipe's log.memory: the planned memory of a run, and its measured memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera {
class Trainer;
}

namespace tessera::logs {

// Rank 0 writes it after its second step (after the only step of a run with one): by then all
// lasting memory exists.
class MemoryLog {
 public:
  // Plans the run, which has done `steps_done` steps. Throws Error(configuration) if the file
  // cannot be written.
  MemoryLog(const training::Recipe& recipe, const Context& context, std::int64_t steps_done);

  // Writes the file when it is time. Returns a text for the user if plan and measurement differ: in
  // a kind that is planned to the byte, or by more than 2 % in total. Throws the errors of
  // LogFile::append() if the file system refuses.
  std::optional<std::string> end_step(const Trainer& training);

 private:
  std::string path_;
  std::int64_t steps_left_ = 0;
  bool batches_vary_ = false;  // plans assume the longest possible batches
  // With context parallelism the last rank may have the most activations, and the plan is its own.
  bool plan_is_of_last_rank_ = false;
  MemoryPlan planned_;
};

// The text, or none if `measured` is as planned; with `at_most`, if nothing is above the plan's,
// and with `total_at_most`, if the total is not.
std::optional<std::string> memory_difference(const RankMemory& planned, const RankMemory& measured,
                                             bool at_most = false, bool total_at_most = false);

}  // namespace tessera::logs

// Compares a run's plan with the free memory of its nodes.
#pragma once

#include <cstdint>
#include <string>

#include "sharding/context/context.h"
#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::planner {

// The bytes of host memory that a rank certainly needs, by its plan.
struct MemoryNeed {
  std::uint64_t bytes = 0;
  bool at_least = false;  // batches need more
  std::string kinds;      // "parameters 1.20 GiB, optimizer 2.40 GiB"
};
MemoryNeed memory_need(const training::Recipe& recipe, DeviceType device,
                       const RankMemory& planned);

// Collective, before the run takes memory. Error(out_of_memory) on every rank if a rank needs more
// than its node has free for it. The message has the needed memory, the free memory, and changes
// that would make the run fit. `ranks_in_process`: this rank and the ranks that are threads of the
// same process. Checks nothing if the recipe has train.memory_check: false.
//
// It compares only the memory that the plan (sharding/plan/plan.h) knows for certain. For sentence
// pairs this is the state of parameters, gradients, moments and communication, because plans assume
// the longest possible batches. For a GPU's rank it is the state that is offloaded to the host: the
// GPU's own memory has a limit with its own error message (engine/cuda).
void check_memory(const training::Recipe& recipe, const Context& context, int ranks_in_process);

}  // namespace tessera::planner

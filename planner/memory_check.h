// A run's plan against the memory that its hosts have free.
#pragma once

#include <cstdint>
#include <string>

#include "sharding/context/context.h"
#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// Bytes of a rank's host memory that a plan knows for certain.
struct MemoryNeed {
  std::uint64_t bytes = 0;
  bool at_least = false;  // batches come on top
  std::string kinds;      // "parameters 1.20 GiB, optimizer 2.40 GiB"
};
MemoryNeed memory_need(const Recipe& recipe, DeviceType device, const RankMemory& planned);

// Collective, before the run takes memory. Error(out_of_memory) on every rank where a rank needs
// more than its host has free for it: the message says what it needs, what is free, and what would
// make it fit. `ranks_in_process`: this rank and those that are threads beside it. Looks at nothing
// where the recipe says train.memory_check: false.
//
// What is compared is what the plan (sharding/plan/plan.h) knows for certain. Of sentence pairs
// that is the state of parameters, gradients, moments and communication: plans take every batch to
// be as long as batches may be. Of a GPU's rank it is what is offloaded to the host: the GPU's own
// memory has a limit that is refused by name (engine/cuda).
void check_memory(const Recipe& recipe, const Context& context, int ranks_in_process);

}  // namespace tessera::cli

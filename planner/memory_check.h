// Compares a run's plan with the free memory of its nodes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sharding/context/context.h"
#include "sharding/plan/plan.h"
#include "training/recipe/recipe.h"

namespace tessera::planner {

// The bytes of host memory that a rank certainly needs, by its plan.
struct MemoryNeed {
  using Kinds = std::vector<std::pair<std::string, std::uint64_t>>;  // by name, without zeros
  Kinds kinds;
  bool at_least = false;  // batches need more

  [[nodiscard]] std::uint64_t bytes() const;
};
// "parameters 1.20 GiB, optimizer 2.40 GiB"
std::string text_of(const MemoryNeed::Kinds& kinds);
// The mean of the ranks, for each kind.
MemoryNeed::Kinds mean_of(const std::vector<MemoryNeed::Kinds>& ranks);
MemoryNeed memory_need(const training::Recipe& recipe, DeviceType device,
                       const RankMemory& planned);

// The samples by which the memory of a rank is judged that shares it with others, together
// `sharing` ranks of `ranks`. Parts that follow the ranks' speed move between all ranks of the
// world: it is the mean of the most that these ranks may take together.
std::int64_t share_to_check(const training::Recipe& recipe, int rank, int ranks, int sharing);

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

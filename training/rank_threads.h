// Ranks of `tessera train` as threads of its process: what `tessera launch --threads` asks for.
#pragma once

#include <functional>

#include "sharding/context/context.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// The variable in which the launcher says how many.
inline constexpr const char* rank_threads_variable = "TESSERA_RANK_THREADS";

// The ranks of this process: 1, or its threads.
int ranks_of_process();

// The world of this process, and of its threads where it has ranks for threads.
comm::World training_world();

// Runs `rank` for each rank of this process and returns the exit code of the first: one rank that
// is connected to the world's others, or all of them as threads. `rank` throws what goes wrong.
int run_ranks(const Recipe& recipe, const comm::World& world,
              const std::function<int(const Context&)>& rank);

}  // namespace tessera::cli

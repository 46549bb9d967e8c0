// Ranks of `tessera train` as threads of its process, for `tessera launch --threads`.
#pragma once

#include <functional>

#include "sharding/context/context.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// In this variable the launcher passes the number of threads.
inline constexpr const char* rank_threads_variable = "TESSERA_RANK_THREADS";

// The number of ranks in this process: 1, or its threads.
int ranks_of_process();

// The world of this process, including its threads if they are ranks.
comm::World training_world();

// Runs `rank` for each rank of this process and returns the exit code of the first: one rank that
// is connected to the others of the world, or all ranks as threads. `rank` throws its errors.
int run_ranks(const Recipe& recipe, const comm::World& world,
              const std::function<int(const Context&)>& rank);

}  // namespace tessera::training

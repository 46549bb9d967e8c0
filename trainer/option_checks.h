// Checks of a run's options before anything is built.
#pragma once

#include "sharding/context/context.h"
#include "tasks/task.h"
#include "trainer/options.h"

namespace tessera {

// Throws Error(configuration) for a value that is not allowed, with the option's name.
void check_options(const TrainerOptions& options);

// Collective. Throws Error(configuration) that names an option, a fact about the data or the seed
// in which two ranks differ: each of them would train another run.
void compare_options(const Context& context, const TrainerOptions& options,
                     const tasks::Task& task);

}  // namespace tessera

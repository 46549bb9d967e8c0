// The sentences of `tessera train` about its run.
#pragma once

#include <string>

#include "trainer/events.h"
#include "trainer/trainer.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

std::string note_of(const RunEvent& event, const training::Recipe& recipe);

std::string note_of(const Spike& spike);

// The counts of its data in one line; empty: the task has none.
std::string describe_data(const tasks::Task& task);

// The run in one line: its parameters, ranks, batches and device.
std::string describe(const Trainer& training, const training::Recipe& recipe);

}  // namespace tessera::cli

// The sentences of `tessera train` about its run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/events.h"
#include "trainer/trainer.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

std::string note_of(const RunEvent& event, const training::Recipe& recipe);

std::string note_of(const Spike& spike);

// The parts of the batches that the ranks take from the next step on.
std::string note_of_parts(const StepMetrics& metrics);

// Task::data_counts() in one line; empty: there are none.
std::string describe_data(const std::vector<std::pair<std::string, std::int64_t>>& counts);

// The run in one line: its parameters, ranks, batches and device.
std::string describe(const Trainer& training, const training::Recipe& recipe);

}  // namespace tessera::cli

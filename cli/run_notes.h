// The sentences of `tessera train` about its run.
#pragma once

#include <string>

#include "training/recipe/recipe.h"
#include "training/run_events.h"
#include "training/trainer.h"

namespace tessera::cli {

std::string note_of(const RunEvent& event, const Recipe& recipe);

// The run in one line: its parameters, ranks, batches and device.
std::string describe(const TrainingRun& training, const Recipe& recipe);

}  // namespace tessera::cli

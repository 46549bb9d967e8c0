// Where in a training step the calling thread is: for plans, which say where the peak is.
#pragma once

#include <string_view>

#include "comm/communicator.h"

namespace tessera {

struct StepPosition {
  comm::Phase phase = comm::Phase::setup;
  std::string_view unit;  // the unit's name, "" for the root; valid while its model lives
};

// The schedule moves it: into a unit before its forward or backward, back to the root after it.
StepPosition step_position();
void set_step_position(StepPosition position);

}  // namespace tessera

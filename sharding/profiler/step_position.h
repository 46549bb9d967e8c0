// The position of the calling thread in a training step; plans report the position of the peak.
#pragma once

#include <string_view>

#include "comm/communicator.h"

namespace tessera {

struct StepPosition {
  comm::Phase phase = comm::Phase::setup;
  std::string_view unit;  // the unit's name, "" for the root; valid while its model lives
};

// The schedule sets it: to a unit before its forward or backward, and back to the root afterwards.
StepPosition step_position();
void set_step_position(StepPosition position);

}  // namespace tessera

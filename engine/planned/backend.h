// The backend of planned devices: memory is counted and never touched, work is logged
// (engine/planned/work_log.h) or forgotten.
#pragma once

#include "engine/device/backend.h"

namespace tessera {

const Backend& planned_backend();

// Of the calling thread's current queue of a planned device, in its WorkLog.
std::uint32_t planned_lane(Device device);

}  // namespace tessera

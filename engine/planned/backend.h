// The backend of planned devices: memory is counted and never accessed; work is logged
// (engine/planned/work_log.h) or dropped.
#pragma once

#include "engine/device/backend.h"

namespace tessera {

const Backend& planned_backend();

// The lane, in its WorkLog, of the calling thread's current queue of a planned device.
std::uint32_t planned_lane(Device device);

}  // namespace tessera

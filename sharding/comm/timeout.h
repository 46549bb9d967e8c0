// The deadline of collectives.
#pragma once

#include <chrono>

#include "sharding/comm/world.h"

namespace tessera::comm {

// What the options say, else TESSERA_COMM_TIMEOUT, else 300 seconds.
std::chrono::milliseconds collective_timeout(const ConnectOptions& options);

}  // namespace tessera::comm

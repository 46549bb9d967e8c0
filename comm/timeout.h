// How long a rank waits for the others.
#pragma once

#include <chrono>

#include "comm/world.h"

namespace tessera::comm {

// What the options say, else TESSERA_COMM_TIMEOUT, else 300 seconds.
std::chrono::milliseconds collective_timeout(const ConnectOptions& options);

// For ranks that do not move: what the options say, else TESSERA_STANDSTILL_TIMEOUT, else 5
// seconds. Both throw Error(configuration) for a value that is no number of seconds.
std::chrono::milliseconds standstill_timeout(const ConnectOptions& options = {});

}  // namespace tessera::comm

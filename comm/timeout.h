// How long a rank waits for the others.
#pragma once

#include <chrono>

#include "comm/world.h"

namespace tessera::comm {

// The timeout of the options, else of TESSERA_COMM_TIMEOUT, else 300 seconds.
std::chrono::milliseconds collective_timeout(const ConnectOptions& options);

// For ranks that do not move: the timeout of the options, else of TESSERA_STANDSTILL_TIMEOUT, else
// 5 seconds. Both functions throw Error(configuration) for a value that is not a number of seconds.
std::chrono::milliseconds standstill_timeout(const ConnectOptions& options = {});

}  // namespace tessera::comm

// Ports for the tests.
#pragma once

#include <unistd.h>

#include <atomic>

#include "comm/control/wire.h"

namespace tessera::testing {

// A port that no program listens on, and that no other test takes before the caller listens there.
// Linux gives ports from 32768 on to programs that ask for any port or connect to another, so these
// ports are below; 64 of them belong to each process that runs at the same time.
inline int free_port() {
  constexpr int first = 10000, ports = 22720, of_a_process = 64;
  static std::atomic<int> count{0};
  int port = 0;
  do {
    const int place = static_cast<int>(getpid() % (ports / of_a_process)) * of_a_process;
    port = first + (place + 2 * count++) % ports;
  } while (!comm::control::listen_on(port));
  return port;
}

}  // namespace tessera::testing

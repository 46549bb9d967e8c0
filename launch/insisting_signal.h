// Signals that ask a process to stop come in pairs without anybody's insisting: a terminal that is
// closed sends SIGHUP from its shell and from the kernel, up to 50 ms apart, and a service manager
// sends a rank SIGTERM beside the one that its launcher passes on.
#pragma once

#include <chrono>
#include <csignal>

namespace tessera::cli {

// Whether a signal that comes `since` the first one that asked to stop means: at once.
inline bool insists(int signal, std::chrono::steady_clock::duration since) {
  constexpr auto pair = std::chrono::milliseconds(500);
  return signal == SIGQUIT || (signal != SIGHUP && since >= pair);
}

}  // namespace tessera::cli

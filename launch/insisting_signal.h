// A repeated signal to stop is not always a second request. A terminal that is closed sends SIGHUP
// from its shell and from the kernel, up to 50 ms apart, and a service manager sends a rank SIGTERM
// beside the one that its launcher passes on.
#pragma once

#include <chrono>
#include <csignal>

namespace tessera::cli {

// True if a signal that comes `since` after the first request to stop asks to stop at once.
inline bool insists(int signal, std::chrono::steady_clock::duration since) {
  constexpr auto pair = std::chrono::milliseconds(500);
  return signal == SIGQUIT || (signal != SIGHUP && since >= pair);
}

}  // namespace tessera::cli

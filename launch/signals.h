// Signals to the launcher. They come through a descriptor, so that the launcher can wait for
// signals, for time, and for ranks and other launchers together.
#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <vector>

#include "comm/file_descriptor.h"

namespace tessera::launcher {

class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  [[nodiscard]] const sigset_t& mask_before() const { return before_; }

  // Waits for a signal. Returns none if the time is over, a rank has ended, or one of the others is
  // ready.
  std::optional<int> wait(std::chrono::milliseconds time, std::vector<pollfd> others);

 private:
  sigset_t before_{};
  comm::FileDescriptor file_;
};

// True if a signal that comes `since` after the first request to stop asks to stop at once. A
// repeated signal is not always a second request: a terminal that is closed sends SIGHUP from its
// shell and from the kernel, up to 50 ms apart, and a service manager sends a rank SIGTERM beside
// the one that its launcher passes on.
inline bool insists(int signal, std::chrono::steady_clock::duration since) {
  constexpr auto pair = std::chrono::milliseconds(500);
  return signal == SIGQUIT || (signal != SIGHUP && since >= pair);
}

}  // namespace tessera::launcher

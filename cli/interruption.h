// Stopping by signal: SIGINT and SIGTERM are noted, the run saves at the end of its step and leaves
// with 128 + signal.
#pragma once

namespace tessera::cli {

// While it lives, the first SIGINT or SIGTERM is only noted; a second one ends the process at once.
class InterruptionWatch {
 public:
  InterruptionWatch();
  ~InterruptionWatch();
  InterruptionWatch(const InterruptionWatch&) = delete;
  InterruptionWatch& operator=(const InterruptionWatch&) = delete;

  // The signal that came, or 0.
  [[nodiscard]] static int signal();
};

}  // namespace tessera::cli

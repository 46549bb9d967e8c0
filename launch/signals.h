// Signals to the launcher, which come through a descriptor, so that they can be waited for together
// with time and with what ranks and other launchers say.
#pragma once

#include <poll.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <vector>

#include "comm/file_descriptor.h"

namespace tessera::cli {

class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  [[nodiscard]] const sigset_t& mask_before() const { return before_; }

  // Waits for a signal; none when the time is over, a rank has ended, or one of the others is
  // ready.
  std::optional<int> wait(std::chrono::milliseconds time, std::vector<pollfd> others);

 private:
  sigset_t before_{};
  comm::FileDescriptor file_;
};

}  // namespace tessera::cli

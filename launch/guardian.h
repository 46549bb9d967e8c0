// A small process beside the launcher that kills the ranks' process groups when the launcher dies
// without having done so, as on SIGKILL. (The kernel's parent-death signal reaches the ranks, but
// not the processes that they started.)
#pragma once

#include <sys/types.h>

#include <chrono>

namespace tessera::launcher {

class Guardian {
 public:
  // The destructor waits at most `patience` for a guardian that does not end.
  explicit Guardian(std::chrono::milliseconds patience);
  ~Guardian();  // it kills the groups that are still watched, and ends
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // May also be called in a forked child, before it executes a program.
  void watch(pid_t group) noexcept { tell(group); }
  void forget(pid_t group) noexcept { tell(-group); }

 private:
  void tell(pid_t message) noexcept;

  std::chrono::milliseconds patience_;
  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace tessera::launcher

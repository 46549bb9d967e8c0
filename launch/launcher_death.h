// The death of the launcher, as by SIGKILL, before it has ended the ranks: a small process beside
// it, its guardian, then kills their process groups. (The kernel's parent-death signal reaches the
// ranks, but not the processes that they started.)
#pragma once

#include <sys/types.h>

#include <chrono>

namespace tessera::launcher {

class LauncherDeathGuard {
 public:
  // The destructor waits at most `patience` for a guardian that does not end.
  explicit LauncherDeathGuard(std::chrono::milliseconds patience);
  ~LauncherDeathGuard();  // it kills the groups that are still watched, and ends
  LauncherDeathGuard(const LauncherDeathGuard&) = delete;
  LauncherDeathGuard& operator=(const LauncherDeathGuard&) = delete;

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

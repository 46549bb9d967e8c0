// A small process beside the launcher that kills the ranks' process groups when the launcher dies
// without having done so, as on SIGKILL. (The kernel's parent-death signal reaches the ranks
// themselves, not what they started.)
#pragma once

#include <sys/types.h>

#include <chrono>

namespace tessera::cli {

class Guardian {
 public:
  // One that does not move for `patience` is not waited for.
  explicit Guardian(std::chrono::milliseconds patience);
  ~Guardian();  // lets it go; it kills what is still watched
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // Also in a forked child, before it executes a program.
  void watch(pid_t group) noexcept { tell(group); }
  void forget(pid_t group) noexcept { tell(-group); }

 private:
  void tell(pid_t message) noexcept;

  std::chrono::milliseconds patience_;
  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace tessera::cli

// One rank as a process: it starts in a group of its own, and ends with every process that it
// started.
#pragma once

#include <sys/types.h>

#include <array>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/launcher_death.h"

namespace tessera::launcher {

struct RankExit {
  int signal = 0;  // the signal that killed it, or 0
  int code = 0;
};

// "was killed by signal 9 (SIGKILL)", "exited with code 3".
std::string describe(const RankExit& exit);

class RankProcess {
 public:
  struct Start {
    std::vector<std::string> command;
    std::map<std::string, std::string> environment;  // beside the launcher's own
    bool keeps_stdin = false;
    sigset_t signal_mask{};                // the program starts with it
    std::vector<int> keep_descriptors;     // stay open over exec
    std::array<int, 2> output = {-1, -1};  // stdout and stderr; -1: the launcher's
  };

  // `guard` watches the rank's group from before the program is executed until it has ended.
  // Throws Error(usage) with the program's name if it cannot be executed.
  RankProcess(int rank, const Start& start, LauncherDeathGuard& guard);
  ~RankProcess();  // kills what is left of the group
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] pid_t pid() const { return pid_; }  // also its process group
  [[nodiscard]] bool running() const { return pid_ > 0 && !exit_; }

  void signal_group(int signal) const noexcept;
  // A signal that must end no process: only those of the group that listen to it get it.
  void tell_group(int signal) const;
  // Its exit, returned once, after it has ended; never waits. Kills the processes that it left in
  // its group.
  std::optional<RankExit> poll();

 private:
  void reap() noexcept;

  int rank_ = 0;
  LauncherDeathGuard* guard_;
  pid_t pid_ = -1;
  std::optional<RankExit> exit_;
};

}  // namespace tessera::launcher

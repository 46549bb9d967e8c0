// One rank as a process: started in a group of its own, ended with everything it started.
#pragma once

#include <sys/types.h>

#include <array>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/guardian.h"

namespace tessera::cli {

struct RankExit {
  int signal = 0;  // that killed it, or 0
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
    sigset_t signal_mask{};                // that the program begins with
    std::optional<int> keep_descriptor;    // stays open over exec
    std::array<int, 2> output = {-1, -1};  // stdout and stderr; -1: the launcher's
  };

  // `guardian` watches the rank's group from before it executes the program until it has ended.
  // Throws Error(usage) naming the program when it cannot be executed.
  RankProcess(int rank, const Start& start, Guardian& guardian);
  ~RankProcess();  // kills what is left
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] pid_t pid() const { return pid_; }  // and its process group
  [[nodiscard]] bool running() const { return pid_ > 0 && !exit_; }

  void signal_group(int signal) const noexcept;
  // A message, which ends nobody: to those of the group that listen to it.
  void tell_group(int signal) const;
  // Its exit, the first time that it is seen to have ended; never waits. Kills what it left behind
  // in its group.
  std::optional<RankExit> poll();

 private:
  void reap() noexcept;

  int rank_ = 0;
  Guardian* guardian_;
  pid_t pid_ = -1;
  std::optional<RankExit> exit_;
};

}  // namespace tessera::cli

// The programs that a comparison starts, one at a time: each with a time limit, and none left
// behind, whatever ends the comparison.
#pragma once

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/guardian.h"

namespace tessera::cli {

class RankProcess;

// Thrown when the comparison was told to stop by a signal; what it had started has ended.
struct Stopped {
  int signal = 0;
};

// How a program ended.
struct ProgramEnd {
  int code = 0;            // its exit code, or 128 + the signal that killed it
  bool timed_out = false;  // and was killed for it
  std::string error;       // the last line that it had for its user, without "tessera: error: "
  double seconds = 0;
};

// Make it before the process has other threads: SIGINT, SIGTERM, SIGHUP and SIGQUIT are taken by
// it from then on, and threads made later inherit that.
class BenchProcesses {
 public:
  // Folders and files of the programs' output go into `folder`.
  explicit BenchProcesses(std::filesystem::path folder);
  ~BenchProcesses();
  BenchProcesses(const BenchProcesses&) = delete;
  BenchProcesses& operator=(const BenchProcesses&) = delete;

  // Runs `command` to its end, for at most `seconds`; what it leaves behind is killed. Throws
  // Stopped when a signal came, and Error(usage) when the program cannot be executed. `gentle` is
  // the signal at which it ends what it started itself; `beside` runs as long as it does, and is
  // ended with it; what of it ends before fails the program.
  ProgramEnd run(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& environment, double seconds,
                 int gentle = SIGTERM, const std::vector<std::vector<std::string>>& beside = {});
  // Throws Stopped when a signal has come.
  void check_stop();

 private:
  void wait(std::chrono::milliseconds time);
  void end(RankProcess& process, int gentle);
  void end_orphans();

  std::filesystem::path folder_;
  sigset_t before_{};
  int signals_ = -1;  // a signalfd
  int signal_ = 0;    // that came
  std::optional<Guardian> guardian_;
  std::set<pid_t> others_;  // children that are not ours to end
};

}  // namespace tessera::cli

// Runs the programs of a comparison, one at a time, each with a time limit. No program stays
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

#include "launch/launcher_death.h"

namespace tessera::launcher {
class RankProcess;
}

namespace tessera::bench {

// Thrown when a signal stops the comparison; the programs that it started have ended.
struct Stopped {
  int signal = 0;
};

// How a program ended.
struct ProgramEnd {
  int code = 0;            // its exit code, or 128 + the signal that killed it
  bool timed_out = false;  // it was killed because of the time limit
  std::string error;       // the last line of its output, without "tessera: error: "
  double seconds = 0;
};

// Create it before the process has other threads: it takes SIGINT, SIGTERM, SIGHUP and SIGQUIT from
// then on, and threads made later inherit the signal mask.
class BenchProcesses {
 public:
  // Files with the programs' output go into `folder`.
  explicit BenchProcesses(std::filesystem::path folder);
  ~BenchProcesses();
  BenchProcesses(const BenchProcesses&) = delete;
  BenchProcesses& operator=(const BenchProcesses&) = delete;

  // Runs `command` to its end, for at most `seconds`; processes that it leaves behind are killed.
  // Throws Stopped if a signal came, and Error(usage) if the program cannot be executed. At the
  // signal `gentle` the program ends the processes that it started. The commands in `beside` run as
  // long as the program and are ended with it; if one of them ends earlier, the program has failed.
  ProgramEnd run(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& environment, double seconds,
                 int gentle = SIGTERM, const std::vector<std::vector<std::string>>& beside = {});
  // Throws Stopped if a signal has come.
  void check_stop();

 private:
  void wait(std::chrono::milliseconds time);
  void end(launcher::RankProcess& process, int gentle);
  void end_orphans();

  std::filesystem::path folder_;
  sigset_t before_{};
  int signals_ = -1;  // a signalfd
  int signal_ = 0;    // the signal that came
  std::optional<launcher::LauncherDeathGuard> guard_;
  std::set<pid_t> others_;  // children that it must not end
};

}  // namespace tessera::bench

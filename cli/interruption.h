// Signals to a run: SIGINT, SIGTERM and SIGHUP are noted, the run saves at the end of its step and
// leaves with 128 + signal; SIGUSR1 asks for a save, and the run goes on.
#pragma once

namespace tessera::cli {

// While it lives, the first SIGINT, SIGTERM or SIGHUP is only noted; a second one ends the process
// at once. A SIGHUP that is ignored already (nohup) stays ignored.
class InterruptionWatch {
 public:
  InterruptionWatch();
  ~InterruptionWatch();
  InterruptionWatch(const InterruptionWatch&) = delete;
  InterruptionWatch& operator=(const InterruptionWatch&) = delete;

  // The signal that came, or 0.
  [[nodiscard]] static int signal();

 private:
  bool hangup_ = false;  // whether SIGHUP is watched
};

// While it lives, SIGUSR1 is counted: a batch system's warning (Slurm's --signal=USR1@60).
class SaveRequests {
 public:
  SaveRequests();
  ~SaveRequests();
  SaveRequests(const SaveRequests&) = delete;
  SaveRequests& operator=(const SaveRequests&) = delete;

  [[nodiscard]] static int count();
};

}  // namespace tessera::cli

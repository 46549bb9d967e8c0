// Signals to a run: SIGINT, SIGTERM and SIGHUP are noted, the run saves its last finished step and
// leaves with 128 + signal; SIGUSR1 asks for a save, and the run goes on.
#pragma once

#include <thread>

namespace tessera::cli {

// Takes these signals on a thread of its own while it lives. No handler may run on a thread that
// computes: oneDNN 2.6's products for AVX-512 keep values where the kernel puts a handler's frame,
// and a signal in the middle of one destroys them (the heap, more often than not). Make it before
// the process has other threads; those made later inherit that they are left alone.
//
// By itself it changes nothing for the first three: they end the process. A SIGHUP that is ignored
// already (nohup) stays ignored, and SIGUSR1 is ignored from its end on.
class SignalThread {
 public:
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  int signals_ = -1;  // a signalfd
  int end_ = -1;      // an eventfd
  std::thread thread_;
};

// While it lives, beside a SignalThread, the first SIGINT, SIGTERM or SIGHUP is only noted; a
// later one that insists (insisting_signal.h) ends the process at once.
//
// With `consequence`, as in "the run saves and ends", each of these signals is reported at once by
// one line on stderr. The text must live as long as the process. Where several ranks of a process
// have a watch, one of them passes it.
class InterruptionWatch {
 public:
  explicit InterruptionWatch(const char* consequence = nullptr);
  ~InterruptionWatch();
  InterruptionWatch(const InterruptionWatch&) = delete;
  InterruptionWatch& operator=(const InterruptionWatch&) = delete;

  // The signal that came, or 0.
  [[nodiscard]] static int signal();
};

// How often SIGUSR1 has come since the SignalThread began: a batch system's warning (Slurm's
// --signal=USR1@60).
int requested_saves();

}  // namespace tessera::cli

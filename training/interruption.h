// Signals to a run. SIGINT, SIGTERM and SIGHUP are noted; the run saves its last finished step and
// exits with 128 + signal. SIGUSR1 asks for a save, and the run goes on.
#pragma once

#include <thread>

namespace tessera::training {

// Takes these signals on its own thread while it lives. No handler may run on a thread that
// computes: oneDNN 2.6's AVX-512 products keep values where the kernel puts a handler's frame, and
// a signal in the middle of a product destroys them (and often the heap). Create it before the
// process has other threads; threads made later inherit the signal mask and do not get these
// signals.
//
// By itself it does not change the effect of the first three: they end the process. A SIGHUP that
// is ignored already (nohup) stays ignored. After the SignalThread has ended, SIGUSR1 is ignored.
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

// While it lives, beside a SignalThread, the first SIGINT, SIGTERM or SIGHUP is only noted. A later
// one that insists (launch/signals.h) ends the process at once.
//
// With `consequence`, as in "the run saves and ends", each of these signals is reported at once by
// one line on stderr. The text must live as long as the process. If several ranks of a process
// have a watch, one of them passes it.
class InterruptionWatch {
 public:
  explicit InterruptionWatch(const char* consequence = nullptr);
  ~InterruptionWatch();
  InterruptionWatch(const InterruptionWatch&) = delete;
  InterruptionWatch& operator=(const InterruptionWatch&) = delete;

  // The signal that came, or 0.
  [[nodiscard]] static int signal();
  // A reader of the run's output has ended: signal() becomes SIGPIPE, unless a signal came before,
  // and until one comes.
  static void note_lost_reader();
};

// The number of SIGUSR1 signals since the SignalThread began: a batch system's warning (Slurm's
// --signal=USR1@60).
int requested_saves();

}  // namespace tessera::training

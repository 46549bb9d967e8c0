// The thread that takes a run's signals.
#include "training/interruption.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/text/print.h"
#include "launch/signals.h"

namespace tessera::training {
namespace {

// Signals belong to the process, so this state does too.
std::atomic<bool> notes_signals{false};
std::atomic<int> noted_signal{0};
std::atomic<std::chrono::steady_clock::time_point> noted_at{};
std::atomic<int> noted_requests{0};
std::atomic<const char*> noted_consequence{nullptr};  // null: signals are not reported

sigset_t taken_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set, number);
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN) {
    sigdelset(&set, SIGHUP);
  }
  return set;
}

// Ends the process as if the signal had its default action.
void end_by(int number) {
  std::signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  (void)::raise(number);
}

// On a line of its own where a progress line is drawn.
void report_signal(const char* which, int number, const char* consequence) {
  if (::isatty(STDERR_FILENO) == 1) redraw_line(STDERR_FILENO, "");
  print_err("tessera: {}signal {} (SIG{}): {}\n", which, number, sigabbrev_np(number), consequence);
}

void take(int number) {
  if (number == SIGUSR1) {
    ++noted_requests;
    return;
  }
  if (!notes_signals) return end_by(number);
  const char* const consequence = noted_consequence;
  const auto now = std::chrono::steady_clock::now();
  if (noted_signal == 0 || noted_signal == SIGPIPE) {
    noted_at = now;
    noted_signal = number;
    if (consequence != nullptr) report_signal("", number, consequence);
  } else if (launcher::insists(number, now - noted_at.load())) {
    if (consequence != nullptr) report_signal("second ", number, "the run ends now");
    end_by(number);
  }
}

void take_signals(int signals, int end) {
  for (;;) {
    pollfd ready[] = {{signals, POLLIN, 0}, {end, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0) continue;  // EINTR: the two descriptors have no other error
    signalfd_siginfo information;
    while (::read(signals, &information, sizeof information) == sizeof information) {
      take(static_cast<int>(information.ssi_signo));
    }
    if ((ready[1].revents & POLLIN) != 0) return;
  }
}

}  // namespace

SignalThread::SignalThread() {
  noted_requests = 0;
  const sigset_t set = taken_signals();
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  end_ = ::eventfd(0, EFD_CLOEXEC);
  if (signals_ == -1 || end_ == -1) {
    if (signals_ != -1) ::close(signals_);
    fail(ErrorCode::runtime,
         "no descriptor for signals: raise the limit of open files (ulimit -n)");
  }
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread(take_signals, signals_, end_);
}

SignalThread::~SignalThread() {
  const std::uint64_t one = 1;
  while (::write(end_, &one, sizeof one) == -1) {
  }
  thread_.join();
  ::close(signals_);
  ::close(end_);
  // A warning that comes now is for a run that has ended; with the default action it would end the
  // process.
  std::signal(SIGUSR1, SIG_IGN);
  const sigset_t set = taken_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

InterruptionWatch::InterruptionWatch(const char* consequence) {
  noted_signal = 0;
  if (consequence != nullptr) noted_consequence = consequence;
  notes_signals = true;
}

InterruptionWatch::~InterruptionWatch() {
  notes_signals = false;
  noted_consequence = nullptr;
}

int InterruptionWatch::signal() {
  return noted_signal;
}

void InterruptionWatch::note_lost_reader() {
  int none = 0;
  noted_signal.compare_exchange_strong(none, SIGPIPE);
}

int requested_saves() {
  return noted_requests;
}

}  // namespace tessera::training

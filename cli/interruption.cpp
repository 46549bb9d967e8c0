// Signal handlers for InterruptionWatch and SaveRequests.
#include "cli/interruption.h"

#include <csignal>

namespace tessera::cli {
namespace {

// The things that a signal handler may write to.
volatile std::sig_atomic_t noted_signal = 0;
volatile std::sig_atomic_t noted_requests = 0;

extern "C" void note_signal(int number) {
  if (noted_signal != 0) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  noted_signal = number;
}

extern "C" void note_request(int) {
  noted_requests = noted_requests + 1;
}

}  // namespace

InterruptionWatch::InterruptionWatch() {
  noted_signal = 0;
  std::signal(SIGINT, note_signal);
  std::signal(SIGTERM, note_signal);
  hangup_ = std::signal(SIGHUP, note_signal) != SIG_IGN;
  if (!hangup_) std::signal(SIGHUP, SIG_IGN);
}

InterruptionWatch::~InterruptionWatch() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  if (hangup_) std::signal(SIGHUP, SIG_DFL);
}

int InterruptionWatch::signal() {
  return noted_signal;
}

SaveRequests::SaveRequests() {
  noted_requests = 0;
  std::signal(SIGUSR1, note_request);
}

SaveRequests::~SaveRequests() {
  std::signal(SIGUSR1, SIG_DFL);
}

int SaveRequests::count() {
  return noted_requests;
}

}  // namespace tessera::cli

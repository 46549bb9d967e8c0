// Signal handlers for InterruptionWatch.
#include "cli/interruption.h"

#include <csignal>

namespace tessera::cli {
namespace {

// The one thing that a signal handler may write to.
volatile std::sig_atomic_t noted_signal = 0;

extern "C" void note_signal(int number) {
  if (noted_signal != 0) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  noted_signal = number;
}

}  // namespace

InterruptionWatch::InterruptionWatch() {
  noted_signal = 0;
  std::signal(SIGINT, note_signal);
  std::signal(SIGTERM, note_signal);
}

InterruptionWatch::~InterruptionWatch() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

int InterruptionWatch::signal() {
  return noted_signal;
}

}  // namespace tessera::cli

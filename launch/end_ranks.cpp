// Signals to the ranks, and when they are due.
#include "launch/end_ranks.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "launch/report.h"
#include "launch/signals.h"

namespace tessera::launcher {

void RankEnding::signal_all(int signal) const {
  for (const RankProcess& rank : ranks_) rank.signal_group(signal);
}

void RankEnding::end() {
  constexpr auto grace = std::chrono::seconds(3);
  end_at_.reset();
  if (std::exchange(begun_, true)) return;
  signal_all(SIGTERM);
  signal_all(SIGCONT);  // so that a stopped process can end as well
  kill_at_ = Clock::now() + grace;
}

void RankEnding::end_after(Clock::duration time) {
  if (!end_at_ && !begun_) end_at_ = Clock::now() + time;
}

void RankEnding::keep_time() {
  if (end_at_ && Clock::now() >= *end_at_) end();
  if (kill_at_ && Clock::now() >= *kill_at_) {
    signal_all(SIGKILL);
    kill_at_.reset();
  }
}

std::chrono::milliseconds RankEnding::waiting_time(std::chrono::milliseconds longest) const {
  using std::chrono::milliseconds;
  if (!kill_at_) return longest;
  const auto left = std::chrono::duration_cast<milliseconds>(*kill_at_ - Clock::now());
  return std::clamp(left + milliseconds(1), milliseconds(1), longest);
}

int RankEnding::take_signal(int signal) {
  const bool repeats = std::exchange(signalled_here_, true);
  if (stop_signal_ == 0) {
    stop(signal);
    return signal;
  }
  if (!repeats || !insists(signal, Clock::now() - stopped_at_)) return 0;
  say(fmt::format("second signal {} (SIG{}): the ranks are killed", signal, sigabbrev_np(signal)));
  signal_all(SIGKILL);
  return SIGKILL;
}

// Batch systems send a signal to all launchers: together they are one request to stop.
void RankEnding::take_foreign_signal(int signal) {
  if (signal == SIGKILL) {
    signal_all(SIGKILL);
  } else if (stop_signal_ == 0) {
    stop(signal);
  }
}

void RankEnding::stop(int signal) {
  signal_all(signal);
  stop_signal_ = signal;
  stopped_at_ = Clock::now();
}

}  // namespace tessera::launcher

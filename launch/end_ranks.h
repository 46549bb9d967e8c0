// Ends the ranks of an attempt:
//   a rank of this node has failed     SIGTERM, and SIGKILL three seconds later
//   ranks of another node have failed  the same, as soon as these ranks have had time to report
//   a signal to a launcher             that signal; at a second one to the same launcher SIGKILL
// Beside this, launcher_death.h ends ranks whose launcher has died, and a RankProcess the processes
// that its rank has left behind.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "launch/rank_process.h"

namespace tessera::launcher {

class RankEnding {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RankEnding(const std::vector<RankProcess>& ranks) : ranks_(ranks) {}

  void end();
  void end_after(Clock::duration time);  // unless an earlier call has said when
  void keep_time();                      // does what is due; the launcher's loop calls it
  // Until keep_time() has something to do, within the limits of a wait.
  [[nodiscard]] std::chrono::milliseconds waiting_time(std::chrono::milliseconds longest) const;

  // A signal to this launcher that asks to stop. Returns what the other launchers must be told, or
  // 0: the signal, or SIGKILL for one that does not wait for the ranks any more. The first one is
  // never that: systems that stop a job signal its nodes one after the other.
  int take_signal(int signal);
  void take_foreign_signal(int signal);  // what another launcher has told

  [[nodiscard]] int stop_signal() const { return stop_signal_; }          // the first one, or 0
  [[nodiscard]] bool begun() const { return begun_; }                     // by end()
  [[nodiscard]] bool gives_time() const { return kill_at_.has_value(); }  // after SIGTERM

 private:
  void signal_all(int signal) const;
  void stop(int signal);

  const std::vector<RankProcess>& ranks_;
  std::optional<Clock::time_point> end_at_;
  std::optional<Clock::time_point> kill_at_;
  bool begun_ = false;
  bool signalled_here_ = false;  // the launcher itself
  int stop_signal_ = 0;
  Clock::time_point stopped_at_{};
};

}  // namespace tessera::launcher

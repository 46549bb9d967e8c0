// The heartbeat of the ranks of a node: a thread of each process publishes that the process runs
// and whether its ranks move, and watches the others.
//
// The heartbeat of a stopped process ends. A running process publishes, for each of its ranks, how
// long none of the rank's threads has moved (thread_activity.h). This distinguishes a rank in a
// deadlock from one that computes, however long that takes. A rank that waits for others in a
// collective does not count as standing still.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/watch/running_clock.h"
#include "comm/watch/standstill.h"
#include "comm/watch/thread_activity.h"

namespace tessera::comm {

// The state of a rank as its process publishes it, in memory that all ranks see.
struct RankPulse {
  std::atomic<pid_t> process{0};
  std::atomic<std::uint64_t> beats{0};
  std::atomic<std::int64_t> still{0};  // milliseconds in which none of its threads moved
  SharedText<160> wait;                // the wait of its own thread then
};

// Tracks whether a rank moves, inside its own process. Used by one thread.
class RankMovement {
 public:
  // Must be called every few milliseconds. `step` is the time since the last call while this
  // process ran. `activity` looks at all threads of the process at its first call in a round of
  // looks; `foreign` are threads that do not work for the rank.
  void look(const StandstillWatch::Threads& threads, std::chrono::nanoseconds step,
            const std::function<const ThreadActivity&()>& activity, std::set<pid_t> foreign);

  // The time for which none of its threads has moved.
  [[nodiscard]] std::chrono::milliseconds still() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(still_);
  }

 private:
  [[nodiscard]] bool own_thread_computed(pid_t thread, std::chrono::nanoseconds step);

  std::chrono::nanoseconds still_{0};
  std::int64_t processor_time_ = 0;  // of the rank's own thread
};

class Pulse {
 public:
  // `ranks` are those of the job, including this process's.
  Pulse(std::vector<RankPulse*> ranks, std::chrono::milliseconds limit);
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  // `rank` lives in this process, from begin() to end().
  void begin(int rank, const StandstillWatch& watch);
  void end(int rank);

  // The time for which a rank's process has sent no heartbeat while this process ran. A process
  // that a debugger has stopped is not silent: a user is looking at it.
  [[nodiscard]] std::chrono::milliseconds silence_of(int rank) const;

 private:
  struct OwnRank {
    const StandstillWatch* watch;
    RankMovement movement;
  };
  struct Heard {
    std::uint64_t beats = 0;
    std::chrono::nanoseconds at{0};
  };
  void beat_on();
  void look();  // the mutex is held

  const std::vector<RankPulse*> ranks_;
  const std::chrono::milliseconds limit_;
  const std::chrono::milliseconds interval_;
  std::vector<std::atomic<std::int64_t>> silence_;  // milliseconds
  std::mutex mutex_;                                // of what follows
  std::condition_variable changed_;
  bool ending_ = false;
  std::map<int, OwnRank> own_;
  RunningClock clock_;
  std::vector<Heard> heard_;
  ThreadActivity activity_;
  std::thread thread_;
};

// The interval of heartbeats and looks when silent ranks are named after `limit`.
std::chrono::milliseconds pulse_interval(std::chrono::milliseconds limit);

}  // namespace tessera::comm

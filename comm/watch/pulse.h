// The heartbeat of the ranks of a host: a thread of each process says that the process runs and
// whether its ranks move, and listens to the others.
//
// A process that was stopped gives no more sign of life. One that runs says of each of its ranks
// for how long none of the rank's threads has moved (thread_activity.h): a rank in a dead-lock is
// told from one that computes, however long that takes. A rank that waits for others in a
// collective is no rank that stands.
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

// What a rank's process says of it, in memory that all ranks see.
struct RankPulse {
  std::atomic<pid_t> process{0};
  std::atomic<std::uint64_t> beats{0};
  std::atomic<std::int64_t> still{0};  // milliseconds in which none of its threads moved
  SharedText<160> wait;                // what its own thread waits in then
};

// Whether a rank moves, as its own process sees it. Used by one thread.
class RankMovement {
 public:
  // To be called every few milliseconds. `step` is the time since the last call, as far as this
  // process ran. `activity` looks at all threads of the process when it is asked the first time in
  // a round of looks; `foreign` are threads that do not work for the rank.
  void look(const StandstillWatch::Threads& threads, std::chrono::nanoseconds step,
            const std::function<const ThreadActivity&()>& activity, std::set<pid_t> foreign);

  // For how long none of its threads has moved.
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
  // `ranks` are those of the job, this process's included.
  Pulse(std::vector<RankPulse*> ranks, std::chrono::milliseconds limit);
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  // `rank` lives in this process, from begin to end.
  void begin(int rank, const StandstillWatch& watch);
  void end(int rank);

  // For how long a rank's process has given no sign of life, while this one ran. One that a
  // debugger has stopped gives it: somebody looks at it.
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

// How often a process beats and looks, when ranks are named after `limit`.
std::chrono::milliseconds pulse_interval(std::chrono::milliseconds limit);

}  // namespace tessera::comm

// Standstill (deadlock): every rank of the job waits for another one, in different calls or
// channels, so no mismatch is visible and no rank can ever continue.
//
// Each rank knows whether it stands still (its own thread and all of its workers wait), and for how
// long. A waiting thread counts that time in the short steps in which it looks, so a process that
// was stopped, or got no core, has not stood still for that time. The rank publishes the result.
// When all ranks have stood still for long enough, and still do, none can make progress. The
// heartbeat (pulse.h) finds a rank that does not move and waits for no other rank.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace tessera::comm {

// A text in memory that all ranks see. A read during a change gets a mixture of both texts.
template <std::size_t Capacity>
class SharedText {
 public:
  void set(std::string_view text) {
    text = text.substr(0, Capacity - 1);
    for (std::size_t i = 0; i < text.size(); ++i) {
      characters_[i].store(text[i], std::memory_order_relaxed);
    }
    characters_[text.size()].store('\0', std::memory_order_relaxed);
  }
  [[nodiscard]] std::string get() const {
    std::string text;
    for (const std::atomic<char>& character : characters_) {
      const char value = character.load(std::memory_order_relaxed);
      if (value == '\0') break;
      text += value;
    }
    return text;
  }

 private:
  std::array<std::atomic<char>, Capacity> characters_{};
};

// The state that a rank publishes about itself, in memory that all ranks see.
struct StandingRank {
  std::atomic<std::int64_t> stood{0};      // milliseconds without a move; 0: it moves
  std::atomic<std::int64_t> looked_at{0};  // milliseconds of the host's monotonic clock
  SharedText<480> calls;                   // that it waits in
};

// One rank's watch over itself. Thread-safe.
class StandstillWatch {
 public:
  explicit StandstillWatch(std::chrono::milliseconds limit) : limit_(limit) {}
  StandstillWatch(const StandstillWatch&) = delete;
  StandstillWatch& operator=(const StandstillWatch&) = delete;

  // The calling thread is the rank's own.
  void set_own_thread();

  void note(Activity activity);

  // A thread of the rank waits or continues. Only the rank's own thread and its workers are
  // counted.
  void begin_worker();
  void end_worker();
  void begin_wait();
  void end_wait();

  // The rank begins or ends a wait for something outside of the job (a download, a process that it
  // started): it counts as moving, whatever its threads do. From any thread.
  void begin_outside() { outside_.fetch_add(1); }
  void end_outside() { outside_.fetch_sub(1); }

  // A wait for ranks of other nodes, which all_stand() does not see.
  void begin_remote() { remote_.fetch_add(1); }
  void end_remote() { remote_.fetch_sub(1); }

  // The rank's threads that have called this class, for observers in other threads.
  struct Threads {
    pid_t own = 0;
    std::set<pid_t> workers;       // that work now
    std::set<pid_t> in_calls;      // any that wait for others
    bool wait_for_others = false;  // all of them, in some call
    bool wait_outside = false;
  };
  [[nodiscard]] Threads threads() const;

  // Describes the call that the thread waits in, after begin_wait.
  void set_call(std::string_view call);

  // Must be called every few milliseconds by a thread that waits in `call` (any thread, after
  // begin_wait). `ranks` are those of the job that have not left, `own` is this rank's place.
  // Returns true when all of them stand still.
  bool all_stand(std::string_view call, StandingRank& own,
                 const std::vector<const StandingRank*>& ranks);

  [[nodiscard]] std::chrono::milliseconds limit() const { return limit_; }

 private:
  [[nodiscard]] int* depth_of_this_thread();
  [[nodiscard]] std::string describe_calls() const;

  const std::chrono::milliseconds limit_;
  std::thread::id own_thread_;
  int own_depth_ = 0;                    // waits of the own thread that are under way, nested
  std::atomic<int> at_work_{1};          // counted threads that do not wait
  std::atomic<std::uint64_t> moves_{0};  // of counted threads
  std::atomic<int> outside_{0};
  std::atomic<int> remote_{0};
  mutable std::mutex mutex_;            // of what follows
  std::map<pid_t, std::string> calls_;  // that threads wait in
  std::set<pid_t> workers_;
  pid_t own_thread_number_ = 0;
  std::uint64_t moves_seen_ = 0;
  std::int64_t looked_at_ = 0;
  std::int64_t stood_ = 0;
};

// A thread that waits for other ranks.
class WaitOfThread {
 public:
  explicit WaitOfThread(StandstillWatch& watch) : watch_(watch) { watch_.begin_wait(); }
  ~WaitOfThread() { watch_.end_wait(); }
  WaitOfThread(const WaitOfThread&) = delete;
  WaitOfThread& operator=(const WaitOfThread&) = delete;

 private:
  StandstillWatch& watch_;
};

// The same for ranks on other nodes: the ranks of this node alone cannot show a standstill.
class RemoteWait {
 public:
  explicit RemoteWait(StandstillWatch& watch) : watch_(watch), wait_(watch) {
    watch_.begin_remote();
  }
  ~RemoteWait() { watch_.end_remote(); }
  RemoteWait(const RemoteWait&) = delete;
  RemoteWait& operator=(const RemoteWait&) = delete;

 private:
  StandstillWatch& watch_;
  WaitOfThread wait_;
};

}  // namespace tessera::comm

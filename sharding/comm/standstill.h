// Standstill: every rank of the job waits for another one, in different calls or channels, so that
// no mismatch shows and nobody will ever move.
//
// Each rank knows whether it stands still (its own thread and all of its workers wait), and for how
// long: the time is counted in the short steps in which a waiting thread looks, so a process that
// was stopped, or got no core, has not stood for that time. It publishes what it sees. When all
// ranks have stood for long enough, and say so now, nobody is left who could move.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tessera::comm {

// What a rank says about itself, in memory that all ranks see.
struct StandingRank {
  std::atomic<std::int64_t> stood{0};          // milliseconds without a move; 0: it moves
  std::atomic<std::int64_t> looked_at{0};      // milliseconds of the host's monotonic clock
  std::array<std::atomic<char>, 480> calls{};  // those that it waits in

  void set_calls(std::string_view text);
  [[nodiscard]] std::string get_calls() const;
};

// One rank's watch over itself. Thread-safe.
class StandstillWatch {
 public:
  explicit StandstillWatch(std::chrono::milliseconds limit) : limit_(limit) {}
  StandstillWatch(const StandstillWatch&) = delete;
  StandstillWatch& operator=(const StandstillWatch&) = delete;

  // The calling thread is the rank's own.
  void set_own_thread() { own_thread_ = std::this_thread::get_id(); }

  // Threads of the rank that wait or go on. Only its own thread and its workers are counted.
  void begin_worker();
  void end_worker();
  void begin_wait();
  void end_wait();

  // Called every few milliseconds by a thread that waits in `call` (any thread, after begin_wait).
  // `ranks` are those of the job that have not left, `own` is this rank's place. Returns whether
  // all of them stand still.
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
  mutable std::mutex mutex_;             // of what follows
  std::map<std::thread::id, std::string> calls_;  // that threads wait in
  std::uint64_t moves_seen_ = 0;
  std::int64_t looked_at_ = 0;
  std::int64_t stood_ = 0;
};

}  // namespace tessera::comm

// How a thread waits for other ranks: it spins when there is a core to spare, then yields, then
// sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera::comm {

// The place where a group's sleeping threads meet. It lies in memory that all ranks see.
struct WaitPoint {
  alignas(64) std::atomic<std::uint32_t> signal{0};
  alignas(64) std::atomic<std::uint32_t> sleepers{0};

  // Wakes all sleepers. Before the call, the condition that they wait for was stored, sequentially
  // consistent.
  void wake(bool between_processes);

  // Sleeps until a wake or for `timeout`, unless done() holds already. done() reads sequentially
  // consistent, so that either this thread sees the change or the thread that made it sees this
  // sleeper.
  template <class Done>
  bool sleep(bool between_processes, std::chrono::milliseconds timeout, Done&& done) {
    sleepers.fetch_add(1);
    const std::uint32_t seen = signal.load();
    bool finished = done();
    if (!finished) {
      wait_for_signal(seen, between_processes, timeout);
      finished = done();
    }
    sleepers.fetch_sub(1);
    return finished;
  }

 private:
  void wait_for_signal(std::uint32_t seen, bool between_processes,
                       std::chrono::milliseconds timeout);
};

// The short waits before a sleep. A system call takes longer than a rank that is late by
// microseconds, but a thread that waits for milliseconds must not take a core from a matrix
// product.
class ShortWait {
 public:
  // Spinning pays when every awaited rank can have a core.
  explicit ShortWait(bool may_spin);
  // Waits a moment; false when it is time to sleep.
  bool pause();

 private:
  int spins_left_;
  int yields_ = 0;
  std::chrono::steady_clock::time_point yield_until_{};
};

}  // namespace tessera::comm

// How a thread waits for other ranks: it spins when there is a core to spare, then yields, then
// sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera::comm {

// Where sleepers of a group meet. In memory that all ranks see.
struct WaitPoint {
  alignas(64) std::atomic<std::uint32_t> signal{0};
  alignas(64) std::atomic<std::uint32_t> sleepers{0};

  // Wakes everybody who sleeps. What they wait for has been stored before, sequentially consistent.
  void wake(bool between_processes);

  // Sleeps until a wake or for `timeout`, unless done() holds already. done() reads sequentially
  // consistent, so that either this thread sees the change or the one who made it sees this
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

// The short waits before a sleep. A rank that is late by microseconds is not worth a system call,
// but a thread that waits for milliseconds must not take a core from a matrix product.
class ShortWait {
 public:
  // Spinning pays when every rank that may be waited for can have a core.
  explicit ShortWait(bool may_spin);
  // Waits a moment; false when it is time to sleep.
  bool pause();

 private:
  int spins_left_;
  int yields_ = 0;
  std::chrono::steady_clock::time_point yield_until_{};
};

}  // namespace tessera::comm

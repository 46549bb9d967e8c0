// Spinning, yielding and futex calls.
#include "comm/shared/waiting.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace tessera::comm {
namespace {

constexpr int spins = 100;  // a few microseconds
constexpr std::chrono::microseconds yield_time{50};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The futex word is the atomic itself: same size, same representation, on every system that has
// futexes.
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace

void WaitPoint::wake(bool between_processes) {
  if (sleepers.load() == 0) return;
  signal.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&signal),
          between_processes ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void WaitPoint::wait_for_signal(std::uint32_t seen, bool between_processes,
                                std::chrono::milliseconds timeout) {
  timespec duration{};
  duration.tv_sec = static_cast<time_t>(timeout.count() / 1000);
  duration.tv_nsec = static_cast<long>(timeout.count() % 1000 * 1'000'000);
  // Every return (woken, signal changed, timeout, EINTR) means: look again.
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&signal),
          between_processes ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, &duration, nullptr, 0);
}

ShortWait::ShortWait(bool may_spin) : spins_left_(may_spin ? spins : 0) {}

bool ShortWait::pause() {
  if (spins_left_ > 0) {
    --spins_left_;
    relax();
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  if (yields_++ == 0) yield_until_ = now + yield_time;
  if (now > yield_until_) return false;
  sched_yield();
  return true;
}

}  // namespace tessera::comm

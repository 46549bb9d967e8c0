// Threads that sleep until a word changes.
// Semaphores and condition variables would order the threads that use them. The thread sanitizer
// would then not report a missing cudaStreamWaitEvent: a worker that the next launch wakes would
// seem to know everything that the host did before. So threads wait on a word with the kernel's
// futex, which the sanitizer does not see. A thread gets its knowledge only by acquiring the one
// atomic that stands for a dependency of CUDA.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace tessera::emulator {

// Reads a word that counts events and carries no dependency, for a sleeper. Later loads must stay
// after it. Under the sanitizer (x86-64 only, where loads keep their order) it must not acquire.
#if defined(TESSERA_EMULATOR_THREAD)
inline constexpr std::memory_order parking_order = std::memory_order_relaxed;
#else
inline constexpr std::memory_order parking_order = std::memory_order_acquire;
#endif

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// Sleeps while `word` is `value`, for a second at most; may return early.
inline void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  const timespec limit{1, 0};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &limit, nullptr, 0);
}

inline void wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera::emulator

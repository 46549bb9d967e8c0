// Threads that sleep until a word changes.
//
// Semaphores and condition variables would order the threads that use them, and the thread
// sanitizer would then take a missing cudaStreamWaitEvent for harmless: a worker that is woken by
// the next launch would seem to know all that the host did until then. So a word is waited for by
// the kernel's futex, which the sanitizer does not see; what a thread may know it learns by
// acquiring from the one atomic that stands for a dependency of CUDA's.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace tessera::emulator {

// How a sleeper reads a word that counts events and carries no dependency. Later loads must stay
// behind it; under the sanitizer (x86-64 only, where loads keep their order) it must not acquire.
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

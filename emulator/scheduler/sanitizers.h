// Informs the sanitizers: which stack runs, what orders threads, which bytes are out of bounds.
// Every call is empty unless TESSERA_EMULATOR_ADDRESS or TESSERA_EMULATOR_THREAD is defined.
// For the thread sanitizer each thread of a block is a thread of its own. The scheduler that
// switches between them is invisible: its files are compiled without -fsanitize=thread, and only
// these calls express what CUDA orders.
#pragma once

#include <cstddef>

#if defined(TESSERA_EMULATOR_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TESSERA_EMULATOR_THREAD)
#include <sanitizer/tsan_interface.h>
#endif

namespace tessera::emulator::sanitizer {

#if defined(TESSERA_EMULATOR_ADDRESS)
inline constexpr bool address = true;
#else
inline constexpr bool address = false;
#endif
#if defined(TESSERA_EMULATOR_THREAD)
inline constexpr bool thread = true;
#else
inline constexpr bool thread = false;
#endif

// Marks bytes as out of bounds, and as accessible again.
inline void forbid([[maybe_unused]] const void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(TESSERA_EMULATOR_ADDRESS)
  __asan_poison_memory_region(memory, bytes);
#endif
}
inline void allow([[maybe_unused]] const void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(TESSERA_EMULATOR_ADDRESS)
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

// True if all of the bytes may be accessed, as far as a sanitizer knows.
inline bool accessible([[maybe_unused]] const void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(TESSERA_EMULATOR_ADDRESS)
  return __asan_region_is_poisoned(const_cast<void*>(memory), bytes) == nullptr;
#else
  return true;
#endif
}

// Orders what a thread did before release(key) before what another does after a later acquire(key).
inline void release([[maybe_unused]] void* key) {
#if defined(TESSERA_EMULATOR_THREAD)
  __tsan_release(key);
#endif
}
inline void acquire([[maybe_unused]] void* key) {
#if defined(TESSERA_EMULATOR_THREAD)
  __tsan_acquire(key);
#endif
}

}  // namespace tessera::emulator::sanitizer

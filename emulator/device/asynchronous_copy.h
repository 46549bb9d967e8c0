// Asynchronous copies from global to shared memory. kernels/cuda/device/gpu.h describes the
// functions.
// The copy happens in copy_async_wait, not earlier: a kernel that does not wait reads old contents.
#pragma once

#include <cstddef>

#include "emulator/scheduler/thread_operations.h"

namespace tessera::emulator {

// Compiled with the kernel, so that the sanitizers see both sides of the copy.
inline void copy_now(void* shared, const void* global, std::size_t bytes, std::size_t valid) {
  auto* to = static_cast<unsigned char*>(shared);
  const auto* from = static_cast<const unsigned char*>(global);
  for (std::size_t i = 0; i < valid; ++i) to[i] = from[i];
  for (std::size_t i = valid; i < bytes; ++i) to[i] = 0;
}

}  // namespace tessera::emulator

namespace tessera::kernels::cuda {

inline void copy_async_16(void* shared, const void* global, bool present = true,
                          emulator::Place place = emulator::Place::here()) {
  emulator::begin_copy(shared, global, 16, present ? 16 : 0, {"copy_async_16", place});
}
inline void copy_async_commit() {
  emulator::commit_copies();
}
template <int pending>
void copy_async_wait() {
  static_assert(pending >= 0);
  emulator::finish_copies(pending, emulator::copy_now);
}

}  // namespace tessera::kernels::cuda

// Barriers of a block, and fences.
#pragma once

#include "emulator/scheduler/thread_operations.h"

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

inline void __syncthreads(tessera::emulator::Place place = tessera::emulator::Place::here()) {
  tessera::emulator::block_barrier(false, {"__syncthreads", place});
}
inline int __syncthreads_count(int predicate,
                               tessera::emulator::Place place = tessera::emulator::Place::here()) {
  return tessera::emulator::block_barrier(predicate != 0, {"__syncthreads_count", place});
}
inline int __syncthreads_or(int predicate,
                            tessera::emulator::Place place = tessera::emulator::Place::here()) {
  const tessera::emulator::Operation operation{"__syncthreads_or", place};
  return tessera::emulator::block_barrier(predicate != 0, operation) > 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate,
                             tessera::emulator::Place place = tessera::emulator::Place::here()) {
  const tessera::emulator::Operation operation{"__syncthreads_and", place};
  return tessera::emulator::block_barrier(predicate == 0, operation) == 0 ? 1 : 0;
}

// Without a fence, a thread's atomic operations do not publish its earlier writes (atomics.h).
inline void __threadfence() {
  tessera::emulator::fence();
}
inline void __threadfence_block() {
  tessera::emulator::fence();
}
inline void __threadfence_system() {
  tessera::emulator::fence();
}

// NOLINTEND(bugprone-reserved-identifier)

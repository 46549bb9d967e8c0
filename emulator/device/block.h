// Barriers of a block, and fences.
#pragma once

#include "emulator/scheduler/thread_operations.h"

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

inline void __syncthreads(tessera::emulator::Place place = tessera::emulator::Place::here()) {
  tessera::emulator::block_barrier({"__syncthreads", place});
}

// Without a fence, a thread's atomic operations do not publish its earlier writes (atomics.h).
inline void __threadfence() {
  tessera::emulator::fence();
}

// NOLINTEND(bugprone-reserved-identifier)

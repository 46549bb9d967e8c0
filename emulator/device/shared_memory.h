// Shared memory. kernels/cuda/device/gpu.h describes the functions.
#pragma once

#include "emulator/scheduler/thread_operations.h"

namespace tessera::emulator {

// The address of this object identifies the variable.
template <class T, class Tag>
inline constexpr char shared_variable_key = 0;

}  // namespace tessera::emulator

namespace tessera::kernels::cuda {

template <class T, class Tag = T>
T& shared_memory(emulator::Place place = emulator::Place::here()) {
  return *static_cast<T*>(emulator::shared_variable(&emulator::shared_variable_key<T, Tag>,
                                                    sizeof(T), {"shared_memory", place}));
}

template <class T>
T* dynamic_shared_memory() {
  return static_cast<T*>(emulator::dynamic_shared_memory());
}

}  // namespace tessera::kernels::cuda

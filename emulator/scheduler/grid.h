// Runs a grid of blocks on the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>

namespace tessera::emulator {

// The result of a launch with this configuration on a device of compute capability 9.0:
// cudaSuccess, cudaErrorInvalidConfiguration (a dimension that is zero or too large, over 1024
// threads) or cudaErrorInvalidValue (over 227 KiB of dynamic shared memory).
[[nodiscard]] cudaError_t check_configuration(dim3 grid, dim3 block, std::size_t shared_bytes);

// Runs body(argument) once for every thread of every block and returns when all are done.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const char* kernel_name,
              void (*body)(void*), void* argument);

// Runs `body` once for every thread of every block, with CUDA's built-in variables set, and returns
// when all are done. Reports show `kernel_name`. The configuration must be valid
// (check_configuration), else std::invalid_argument, as for bad environment variables (schedule.h).
// Many host threads may call this at the same time, but a kernel must not.
template <class Body>
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const char* kernel_name,
              Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  run_grid(
      grid, block, shared_bytes, kernel_name,
      [](void* argument) { (*static_cast<Plain*>(argument))(); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace tessera::emulator

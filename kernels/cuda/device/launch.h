// Starts kernels. Every launch declares its name, its sizes and the memory that it reads and
// writes. The error of a failed launch contains the sizes; the access checker of the tests compares
// the memory between streams (emulator/runtime).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/error.h"
#include "kernels/cuda/device/gpu.h"
#if !defined(__CUDACC__)
#include "emulator/runtime/launch.h"
#endif

namespace tessera::kernels::cuda {

// Bytes of device memory that a launch accesses. Null or empty ones are left out.
struct Access {
  const void* memory;
  std::size_t bytes;
  bool write;
};
template <class Count>
Access reads(const void* memory, Count bytes) {
  return {memory, static_cast<std::size_t>(bytes), false};
}
template <class Count>
Access writes(const void* memory, Count bytes) {
  return {memory, static_cast<std::size_t>(bytes), true};
}

struct LaunchInfo {
  const char* kernel;
  std::initializer_list<std::int64_t> sizes;
  std::initializer_list<Access> accesses;
};

struct LaunchConfiguration {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};

// Starts kernel(arguments...) on the context's stream and returns at once. Has no effect if a grid
// dimension is zero.
template <class... Parameters, class... Arguments>
void launch(Context& context, const LaunchInfo& info, const LaunchConfiguration& configuration,
            void (*kernel)(Parameters...), Arguments&&... arguments) {
  const dim3 grid = configuration.grid;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#if defined(__CUDACC__)
  constexpr std::size_t always_allowed = 48 << 10;
  if (configuration.shared_bytes > always_allowed) {
    TESSERA_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(configuration.shared_bytes)));
  }
  kernel<<<grid, configuration.block, configuration.shared_bytes, context.stream>>>(
      static_cast<Parameters>(arguments)...);
  const cudaError_t error = cudaGetLastError();
#else
  emulator::LaunchRecord record{info.kernel, grid, configuration.block, configuration.shared_bytes};
  for (const Access& access : info.accesses) {
    if (access.memory != nullptr && access.bytes > 0) {
      record.add_access(access.memory, access.bytes, access.write);
    }
  }
  const cudaError_t error =
      emulator::launch(context.stream, std::move(record), kernel,
                       static_cast<Parameters>(std::forward<Arguments>(arguments))...);
#endif
  if (error != cudaSuccess) {
    fail_launch(error, {info.kernel, info.sizes.begin(), static_cast<int>(info.sizes.size()), grid,
                        configuration.block, configuration.shared_bytes});
  }
}

}  // namespace tessera::kernels::cuda

// Kernel launches on the emulated device: kernels/cuda/device/launch.h calls these where no GPU
// compiler is used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::emulator {

// Memory that an operation of a stream touches.
struct Access {
  const void* memory = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

// A launch, as the emulator checks, orders and reports it. `kernel` is the name in reports and
// lives as long as the program.
struct LaunchRecord {
  const char* kernel = "";
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
  std::vector<Access> accesses = {};

  void add_access(const void* memory, std::size_t bytes, bool write) {
    accesses.push_back({memory, bytes, write});
  }
};

// Checks the configuration and puts a run of the grid on the stream, where every thread calls
// `thread_body` once. Returns, and keeps for cudaGetLastError, the same error as CUDA: an error of
// the configuration at once, and the error of an earlier kernel that failed. Returns
// cudaErrorIllegalAddress, with a text on stderr, if a declared access is not in a live allocation.
cudaError_t enqueue_launch(cudaStream_t stream, LaunchRecord record,
                           std::function<void()> thread_body);

// Starts kernel(arguments...); the arguments are copied before it returns.
template <class... Parameters, class... Arguments>
cudaError_t launch(cudaStream_t stream, LaunchRecord record, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  return enqueue_launch(stream, std::move(record),
                        [kernel, values = std::move(values)] { std::apply(kernel, values); });
}

}  // namespace tessera::emulator

// Shared by the tests of the engine's GPU: a gate in a queue, and copies of values to the device
// and back.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/device/queue.h"
#include "engine/tensor.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/error.h"

namespace tessera::testing {

inline constexpr Device gpu = Device::cuda();

// Blocks a queue until it is opened, or until the end of its scope.
class Gate {
 public:
  explicit Gate(DeviceQueue& queue) {
    const cudaStream_t stream = kernels::cuda::context_of(queue.native()).stream;
    TESSERA_CUDA(cudaLaunchHostFunc(
        stream,
        [](void* gate) {
          while (!static_cast<Gate*>(gate)->open_) std::this_thread::yield();
          static_cast<Gate*>(gate)->passed_ = true;
        },
        this));
  }
  ~Gate() {
    open();
    while (!passed_) std::this_thread::yield();
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_ = false;
  std::atomic<bool> passed_ = false;
};

inline std::vector<float> counting(std::size_t n, float first = 0) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

inline Tensor on_gpu(const std::vector<float>& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(gpu);
}

inline std::vector<float> fetch(const Tensor& x) {
  const std::vector<double> values = x.to_vector();
  return {values.begin(), values.end()};
}

// The Error that `call` throws.
template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::runtime, ""};
}

}  // namespace tessera::testing

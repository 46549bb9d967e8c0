// Looking for GPUs.
#include "engine/cuda/device.h"

#include <fmt/format.h>

#include <vector>

#include "kernels/cuda/error.h"

namespace tessera::cuda {
namespace {

Availability look() {
  int count = 0;  // CUDA leaves it alone when it fails
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {count, ""};
  (void)cudaGetLastError();
  if (error == cudaSuccess) return {0, "no NVIDIA GPU"};
  const char* what = error == cudaErrorInsufficientDriver ? "no NVIDIA driver"
                     : error == cudaErrorNoDevice         ? "no NVIDIA GPU"
                                                          : "CUDA does not start";
  return {0, fmt::format("{}: {} ({})", what, cudaGetErrorName(error), cudaGetErrorString(error))};
}

}  // namespace

const Availability& availability() {
  static const Availability found = look();
  return found;
}

const cudaDeviceProp& properties(int device) {
  static const std::vector<cudaDeviceProp> all = [] {
    std::vector<cudaDeviceProp> found(static_cast<std::size_t>(availability().count));
    for (std::size_t i = 0; i < found.size(); ++i) {
      TESSERA_CUDA(cudaGetDeviceProperties(&found[i], static_cast<int>(i)));
    }
    return found;
  }();
  return all.at(static_cast<std::size_t>(device));
}

void bind_thread(int device) {
  thread_local int bound = -1;
  if (bound == device) return;
  TESSERA_CUDA(cudaSetDevice(device));
  bound = device;
}

}  // namespace tessera::cuda

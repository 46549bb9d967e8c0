// Finds GPUs.
#include "engine/cuda/device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "kernels/cuda/device/error.h"

namespace tessera::cuda {
namespace {

// CUDA encodes 12.4 as 12040.
std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Availability look() {
  // A kernel that is loaded at its first launch waits for the device, where a collective may be
  // waiting for a peer that does the same. CUDA reads this variable at its first call, which is the
  // next.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int count = 0;  // CUDA does not change these two on failure
  int driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  (void)cudaDriverGetVersion(&driver);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return availability_from(error, count, driver);
}

}  // namespace

Availability availability_from(cudaError_t error, int count, int driver) {
  const bool has_driver = driver > 0;
  if (error == cudaSuccess && count > 0) return {count, "", has_driver};
  if (error == cudaSuccess || error == cudaErrorNoDevice) return {0, "no NVIDIA GPU", has_driver};
  if (error != cudaErrorInsufficientDriver) {
    return {0,
            fmt::format("CUDA does not start: {} ({})", cudaGetErrorName(error),
                        cudaGetErrorString(error)),
            has_driver};
  }
  if (!has_driver) return {0, "no NVIDIA driver", false};
  return {0,
          fmt::format("the NVIDIA driver is too old: it is for CUDA {}, and this build needs {}",
                      cuda_version(driver), cuda_version(CUDART_VERSION / 1000 * 1000)),
          true};
}

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

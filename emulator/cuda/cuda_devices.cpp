// The cuda* functions for devices, versions and attributes of kernels.
#include <algorithm>
#include <cstring>

#include "emulator/cuda/api.h"
#include "emulator/runtime/settings.h"

namespace api = tessera::emulator::api;
using tessera::emulator::runtime;
using tessera::emulator::settings;

namespace {

constexpr int shared_of_a_block = 48 << 10;
constexpr int shared_of_a_block_if_asked_for = 227 << 10;
constexpr int shared_of_a_multiprocessor = 228 << 10;
constexpr int threads_of_a_block = 1024;
constexpr int threads_of_a_multiprocessor = 2048;
constexpr int registers = 65536;
// Few, so that grids that are sized by their number stay small.
constexpr int multiprocessors = 4;
constexpr int level_2_cache = 50 << 20;

void require_device(int device) {
  if (device < 0 || device >= settings().devices) throw api::Failure{cudaErrorInvalidDevice};
}

void describe(cudaDeviceProp& properties) {
  properties = {};
  std::strncpy(properties.name, "emulated GPU", sizeof(properties.name) - 1);
  properties.totalGlobalMem = settings().memory;
  properties.sharedMemPerBlock = shared_of_a_block;
  properties.sharedMemPerBlockOptin = shared_of_a_block_if_asked_for;
  properties.sharedMemPerMultiprocessor = shared_of_a_multiprocessor;
  properties.reservedSharedMemPerBlock = 1 << 10;
  properties.regsPerBlock = registers;
  properties.regsPerMultiprocessor = registers;
  properties.warpSize = 32;
  properties.maxThreadsPerBlock = threads_of_a_block;
  properties.maxThreadsPerMultiProcessor = threads_of_a_multiprocessor;
  properties.maxBlocksPerMultiProcessor = 32;
  constexpr int block_sizes[] = {1024, 1024, 64};
  constexpr int grid_sizes[] = {0x7fffffff, 65535, 65535};
  std::copy(std::begin(block_sizes), std::end(block_sizes), properties.maxThreadsDim);
  std::copy(std::begin(grid_sizes), std::end(grid_sizes), properties.maxGridSize);
  properties.major = 9;
  properties.minor = 0;
  properties.multiProcessorCount = multiprocessors;
  properties.l2CacheSize = level_2_cache;
  properties.memoryBusWidth = 5120;
  properties.asyncEngineCount = 3;
  properties.concurrentKernels = 1;
  properties.unifiedAddressing = 1;
  properties.canMapHostMemory = 1;
  properties.streamPrioritiesSupported = 1;
  properties.globalL1CacheSupported = 1;
  properties.localL1CacheSupported = 1;
  properties.memoryPoolsSupported = 1;
  properties.hostRegisterSupported = 1;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return api::call_anywhere("cudaGetDeviceCount", [&] {
    *count = settings().devices;
    if (*count == 0) throw api::Failure{cudaErrorNoDevice};
  });
}

cudaError_t cudaSetDevice(int device) {
  return api::call_anywhere("cudaSetDevice", [&] {
    if (settings().devices == 0) throw api::Failure{cudaErrorNoDevice};
    require_device(device);
    api::this_thread().device = device;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return api::call("cudaGetDevice", [&] { *device = api::this_thread().device; });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return api::call("cudaGetDeviceProperties", [&] {
    require_device(device);
    describe(*properties);
  });
}

cudaError_t cudaDeviceSynchronize() {
  return api::call("cudaDeviceSynchronize", [&] {
    runtime().synchronize(api::this_thread().device);
    api::require_working_device();  // earlier work may have failed
  });
}

// A device that failed works again. Unlike in CUDA, memory and streams stay: code that still uses
// them after a reset gets a reported error, not a pointer that another allocation may reuse.
cudaError_t cudaDeviceReset() {
  return api::call_anywhere("cudaDeviceReset", [&] {
    if (settings().devices == 0) throw api::Failure{cudaErrorNoDevice};
    runtime().synchronize(api::this_thread().device);
    runtime().set_failure(api::this_thread().device, cudaSuccess);
    api::this_thread().last_error = cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api::call_anywhere("cudaDriverGetVersion", [&] { *version = CUDART_VERSION; });
}

// The emulator's kernels may always use the maximum that a block can opt in to.
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return api::call("cudaFuncSetAttribute", [&] {
    if (kernel == nullptr) throw api::Failure{cudaErrorInvalidDeviceFunction};
    switch (attribute) {
      case cudaFuncAttributeMaxDynamicSharedMemorySize:
        api::require(value >= 0 && value <= shared_of_a_block_if_asked_for, cudaErrorInvalidValue,
                     "{} bytes of shared memory; a block may have {}", value,
                     shared_of_a_block_if_asked_for);
        return;
      case cudaFuncAttributePreferredSharedMemoryCarveout:
        api::require(value >= -1 && value <= 100, cudaErrorInvalidValue, "a share of {} %", value);
        return;
      default:
        api::fail(cudaErrorNotSupported, "the emulator does not know attribute {}",
                  static_cast<int>(attribute));
    }
  });
}

}  // extern "C"

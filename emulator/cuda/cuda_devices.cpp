// The cuda* functions for devices, versions, attributes of kernels and the profiler.
#include <cuda_profiler_api.h>
#include <fmt/format.h>

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

// The attributes that Tessera's code reads; others are refused rather than guessed.
int attribute_of(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return threads_of_a_block;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return shared_of_a_block;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return shared_of_a_block_if_asked_for;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return shared_of_a_multiprocessor;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return threads_of_a_multiprocessor;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return registers;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrMultiProcessorCount:
      return multiprocessors;
    case cudaDevAttrL2CacheSize:
      return level_2_cache;
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrComputeCapabilityMinor:
    case cudaDevAttrIntegrated:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrPageableMemoryAccess:
      return 0;
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrHostRegisterSupported:
      return 1;
    case cudaDevAttrAsyncEngineCount:
      return 3;
    case cudaDevAttrClockRate:
      return 1'980'000;  // kHz
    case cudaDevAttrMemoryClockRate:
      return 2'619'000;
    case cudaDevAttrGlobalMemoryBusWidth:
      return 5120;
    default:
      api::fail(cudaErrorNotSupported, "the emulator has no value for attribute {}",
                static_cast<int>(attribute));
  }
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

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return api::call("cudaDeviceGetAttribute", [&] {
    require_device(device);
    *value = attribute_of(attribute);
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return api::call("cudaDeviceGetPCIBusId", [&] {
    require_device(device);
    const std::string id = fmt::format("0000:{:02x}:00.0", device + 1);
    api::require(static_cast<int>(id.size()) < length, cudaErrorInvalidValue, "{} characters",
                 length);
    std::strncpy(text, id.c_str(), static_cast<std::size_t>(length));
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

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return api::call("cudaDeviceCanAccessPeer", [&] {
    require_device(device);
    require_device(peer);
    *can = device != peer ? 1 : 0;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return api::call("cudaDeviceEnablePeerAccess", [&] {
    require_device(peer);
    api::require(flags == 0, cudaErrorInvalidValue, "flags {:#x}", flags);
    if (peer == api::this_thread().device) throw api::Failure{cudaErrorInvalidDevice};
    if (!runtime().enable_peer_access(api::this_thread().device, peer)) {
      throw api::Failure{cudaErrorPeerAccessAlreadyEnabled};
    }
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return api::call_anywhere("cudaDriverGetVersion", [&] { *version = CUDART_VERSION; });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return api::call_anywhere("cudaRuntimeGetVersion", [&] { *version = CUDART_VERSION; });
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

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return api::call("cudaFuncGetAttributes", [&] {
    if (kernel == nullptr) throw api::Failure{cudaErrorInvalidDeviceFunction};
    *attributes = {};
    attributes->maxThreadsPerBlock = threads_of_a_block;
    attributes->maxDynamicSharedSizeBytes = shared_of_a_block_if_asked_for;
    attributes->numRegs = 32;  // a plausible value: the emulator has no registers
    attributes->ptxVersion = 90;
    attributes->binaryVersion = 90;
  });
}

// There is no profiler, so both do nothing.
cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

}  // extern "C"

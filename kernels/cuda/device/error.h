// Errors of CUDA calls as exceptions. nvcc cannot compile the formatting library, so error.cpp
// builds the messages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels::cuda {

// Throws Error(out_of_memory) for cudaErrorMemoryAllocation, else Error(runtime), with the call's
// text, CUDA's name and meaning of the error, and the place. Clears CUDA's last error.
[[noreturn]] void fail_call(cudaError_t error, const char* call, const char* file, int line);

// The same for a kernel's launch, with its name, sizes and configuration.
struct LaunchShape {
  const char* kernel;
  const std::int64_t* sizes;
  int size_count;
  dim3 grid, block;
  std::size_t shared_bytes;
};
[[noreturn]] void fail_launch(cudaError_t error, const LaunchShape& launch);

// Throws a std::logic_error: `kernel` does not support this dtype.
[[noreturn]] void unsupported(const char* kernel, DType dtype);
// Throws a std::logic_error: "`kernel`: `problem` (value)".
[[noreturn]] void misuse_of(const char* kernel, const char* problem, std::int64_t value);

}  // namespace tessera::kernels::cuda

// Checks a CUDA call. All calls use it.
#define TESSERA_CUDA(call)                                                            \
  do {                                                                                \
    const cudaError_t tessera_error_ = (call);                                        \
    if (tessera_error_ != cudaSuccess) {                                              \
      ::tessera::kernels::cuda::fail_call(tessera_error_, #call, __FILE__, __LINE__); \
    }                                                                                 \
  } while (false)

// Messages of failed CUDA calls and launches.
#include "kernels/cuda/device/error.h"

#include <fmt/format.h>
#include <string>

#include "base/error.h"

namespace tessera::kernels::cuda {
namespace {

ErrorCode code_of(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::runtime;
}

std::string way_out(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "; use a smaller batch, a sharding strategy that holds less, or more ranks";
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no code for that GPU: add its architecture to "
             "CMAKE_CUDA_ARCHITECTURES";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "; an earlier kernel failed: run with TESSERA_SERIAL_STREAMS=1 to see which";
    default:
      return "";
  }
}

std::string meaning_of(cudaError_t error) {
  return fmt::format("{} ({})", cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace

void fail_call(cudaError_t error, const char* call, const char* file, int line) {
  (void)cudaGetLastError();
  fail(code_of(error), "{} failed: {} at {}:{}{}", call, meaning_of(error), file, line,
       way_out(error));
}

void fail_launch(cudaError_t error, const LaunchShape& launch) {
  (void)cudaGetLastError();
  std::string sizes;
  for (int i = 0; i < launch.size_count; ++i) {
    sizes += fmt::format("{}{}", i == 0 ? "" : ", ", launch.sizes[i]);
  }
  fail(
      code_of(error),
      "kernel {} of sizes [{}] does not start: {} (grid {} x {} x {}, block {} x {} x {}, {} bytes "
      "of shared memory){}",
      launch.kernel, sizes, meaning_of(error), launch.grid.x, launch.grid.y, launch.grid.z,
      launch.block.x, launch.block.y, launch.block.z, launch.shared_bytes, way_out(error));
}

void unsupported(const char* kernel, DType dtype) {
  misuse("{}: {} is not supported here; cast the tensor first", kernel, name_of(dtype));
}

void misuse_of(const char* kernel, const char* problem, std::int64_t value) {
  misuse("{}: {} ({})", kernel, problem, value);
}

}  // namespace tessera::kernels::cuda

// The contents of the opaque descriptors of the emulated cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace tessera::emulator::cublas {

struct Operation : cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type = CUDA_R_32F;
  bool has_bias_type = false;  // else the result's
  const void* bias = nullptr;
};

// Column-major: `leading` elements between columns, `stride` between the matrices of a batch.
struct Layout : cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t leading = 0;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};

struct Preference : cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t most_workspace_bytes = 0;
};

// Bytes of an element; 0 for a type that is not emulated.
constexpr std::int64_t size_of_type(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16BF:
    case CUDA_R_16F:
      return 2;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_64F:
      return 8;
    default:
      return 0;
  }
}

// Bytes from the first element of the first matrix to the end of the last matrix.
constexpr std::size_t span_of(const Layout& layout) {
  const std::int64_t elements =
      (layout.batch - 1) * layout.stride + (layout.columns - 1) * layout.leading + layout.rows;
  return static_cast<std::size_t>(elements * size_of_type(layout.type));
}

}  // namespace tessera::emulator::cublas

// Who computes matrix products on a GPU.
#pragma once

#include <string>

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/matmul/matmul_cublas_library.h"
#include "kernels/matmul.h"

namespace tessera::kernels::cuda {

enum class MatmulWay : std::uint8_t {
  automatic,  // cuBLASLt where it can be loaded, else the engine's own kernels
  own,
  cublas,  // cuBLASLt; an error where it cannot be loaded
};

// "auto" (also null and ""), "own" or "cublas"; anything else is an Error(configuration).
MatmulWay matmul_way_of(const char* text);

// The process's: what the environment's TESSERA_CUDA_MATMUL said at the first call.
MatmulWay matmul_way();

// Who then computes: "cuBLASLt 13.1.0 (its file)", or "our own kernels" with the reason.
std::string describe_products(MatmulWay way, const CublasLtLibrary& library);

// cuda::matmul by a given way. What cuBLASLt does not cover (matmul_cublas.h) goes to the own
// kernels by every way. Error(configuration) for MatmulWay::cublas without a library.
void matmul_by(MatmulWay way, const Matmul& product, Context& context,
               const CublasLtLibrary& library);

}  // namespace tessera::kernels::cuda

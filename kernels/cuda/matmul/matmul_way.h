// The choice of the implementation of matrix products on a GPU.
#pragma once

#include <string>

#include "kernels/cuda/device/context.h"
#include "kernels/cuda/matmul/matmul_cublas_library.h"
#include "kernels/matmul.h"

namespace tessera::kernels::cuda {

enum class MatmulWay : std::uint8_t {
  automatic,  // cuBLASLt if it can be loaded, else the engine's own kernels
  own,
  cublas,  // cuBLASLt; an error if it cannot be loaded
};

// Parses "auto" (also null and ""), "own" or "cublas"; anything else is an Error(configuration).
MatmulWay matmul_way_of(const char* text);

// The process's choice: TESSERA_CUDA_MATMUL in the environment at the first call.
MatmulWay matmul_way();

// The implementation in use: "cuBLASLt 13.1.0 (its file)", or "our own kernels" with the reason.
std::string describe_products(MatmulWay way, const CublasLtLibrary& library);

// Loads the library of the process's choice, if it has one. Loading takes a second and may wait for
// the device, so it is not left to the first product, which other ranks' collectives may wait for.
void load_products();

// Computes cuda::matmul in the given way. Products that cuBLASLt does not cover (matmul_cublas.h)
// use the own kernels in every way; the context counts both. Error(configuration) for
// MatmulWay::cublas without a library.
void matmul_by(MatmulWay way, const Matmul& product, Context& context,
               const CublasLtLibrary& library);

}  // namespace tessera::kernels::cuda

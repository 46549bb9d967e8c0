// Arithmetic that rounds as on the CPU, for results that must equal the CPU's bits. Sums,
// differences and quotients do so anyway: nvcc's options allow neither approximation nor flushing.
#pragma once

#include <cmath>

#include "kernels/cuda/device/gpu.h"

namespace tessera::kernels::cuda {

// a * b, rounded. nvcc may turn a * b + c into one fused operation, which rounds once instead of
// twice; it never does so with this product. (The emulator is compiled without fusing.)
__device__ __forceinline__ float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
__device__ __forceinline__ double product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// a * b + c, rounded once. Used explicitly where two kernels must compute the same bits: otherwise
// nvcc decides separately for each.
__device__ __forceinline__ float fused(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ __forceinline__ double fused(double a, double b, double c) {
  return fma(a, b, c);
}

// A correctly rounded square root in the argument's type.
__device__ __forceinline__ float square_root(float x) {
  return sqrtf(x);
}
__device__ __forceinline__ double square_root(double x) {
  return sqrt(x);
}

}  // namespace tessera::kernels::cuda

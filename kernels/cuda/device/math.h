// CUDA's functions under one name for fp32 and fp64.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/cuda/device/gpu.h"

namespace tessera::kernels::cuda {

#define TESSERA_DEVICE_FUNCTION(name, float_function, double_function) \
  __device__ __forceinline__ float name(float x) {                     \
    return float_function(x);                                          \
  }                                                                    \
  __device__ __forceinline__ double name(double x) {                   \
    return double_function(x);                                         \
  }
TESSERA_DEVICE_FUNCTION(exponential, expf, exp)
TESSERA_DEVICE_FUNCTION(logarithm, logf, log)
TESSERA_DEVICE_FUNCTION(hyperbolic_tangent, tanhf, tanh)
TESSERA_DEVICE_FUNCTION(error_complement, erfcf, erfc)
TESSERA_DEVICE_FUNCTION(logarithm_of_one_plus, log1pf, log1p)
#undef TESSERA_DEVICE_FUNCTION

// 2^x by one instruction, with a relative error below 2^-22; results below 2^-126 are 0. exp2f()
// spends three more instructions on those.
__device__ __forceinline__ float flushed_exp2(float x) {
#if defined(__CUDACC__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  const float result = exp2f(x);
  return result < std::numeric_limits<float>::min() ? 0.0f : result;
#endif
}

// e^x and a / b in fp32 for values that are stored in T: of a 16-bit T by single instructions,
// whose relative errors (2^-22, and |x| 2^-24 of e^x) disappear in the rounding. Results below
// 2^-126 and quotients by more than 2^126 may be 0.
template <class T, class C>
__device__ __forceinline__ C exponential_for(C x) {
  if constexpr (sizeof(T) == 2) {
    return flushed_exp2(x * 1.4426950408889634f);
  } else {
    return exponential(x);
  }
}
template <class T, class C>
__device__ __forceinline__ C quotient_for(C a, C b) {
#if defined(__CUDACC__)
  if constexpr (sizeof(T) == 2) return __fdividef(a, b);
#endif
  return a / b;
}

__device__ __forceinline__ float power(float x, float y) {
  return powf(x, y);
}
__device__ __forceinline__ double power(double x, double y) {
  return pow(x, y);
}

}  // namespace tessera::kernels::cuda

// The nonlinear functions of unary.cu and activation.cu, and their derivatives, in fp32 and fp64. T
// is the type in which the result is stored (exponential_for); float: as accurate as fp32. They
// follow kernels/cpu/simd/simd_math-inl.h, with CUDA's functions in place of polynomials and
// the bounds of those functions. NaN stays NaN, and no intermediate result overflows if the
// function has a finite value.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/math.h"

namespace tessera::kernels::cuda {

// Limits x to [-limit, limit]; NaN passes, which fminf would drop.
template <class C>
__device__ __forceinline__ C bounded(C x, C limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

template <class T = float, class C>
__device__ __forceinline__ C sigmoid(C x) {
  return quotient_for<T>(C(1), C(1) + exponential_for<T>(-x));
}

// s = 1 / (1 + e^-x) and 1 - s = e^-x s, which has no cancellation; s stays above 1e-38 (fp64:
// 1e-304), so that the product is never Inf times 0.
template <class C>
struct SigmoidPair {
  C value;
  C complement;
};
template <class T = float, class C>
__device__ __forceinline__ SigmoidPair<C> sigmoid_with_complement(C x) {
  constexpr C limit = std::is_same_v<C, double> ? C(700) : C(87);
  const C minus_x = -x;
  const C e = exponential_for<T>(minus_x > limit ? limit : minus_x);
  const C value = quotient_for<T>(C(1), C(1) + e);
  return {value, e * value};
}

template <class T = float, class C>
__device__ __forceinline__ C silu(C x) {
  return quotient_for<T>(x, C(1) + exponential_for<T>(-x));
}

// sigmoid * (1 + x (1 - sigmoid)). Past 1000 the inner product is 0; the bounds keep Inf out of it.
template <class T = float, class C>
__device__ __forceinline__ C silu_derivative(C x) {
  const SigmoidPair<C> s = sigmoid_with_complement<T>(x);
  return s.value * fused(bounded(x, C(1000)), s.complement, C(1));
}

// GELU by the tanh approximation: 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715
// x^3).
inline constexpr double gelu_twice_slope = 1.5957691216057308;  // 2 sqrt(2/pi)
inline constexpr double gelu_cubic = 0.044715;

template <class T = float, class C>
__device__ __forceinline__ C gelu_tanh(C x) {
  const C minus_inner = fused(x * x, C(-gelu_twice_slope * gelu_cubic), C(-gelu_twice_slope));
  return quotient_for<T>(x, C(1) + exponential_for<T>(x * minus_inner));
}

// Past 40 in either direction the sigmoid is 0 or 1; the bounds keep x^3 finite.
template <class T = float, class C>
__device__ __forceinline__ C gelu_tanh_derivative(C x) {
  const C near = bounded(x, C(40));
  const C square = near * near;
  const C inner = fused(square, C(gelu_twice_slope * gelu_cubic), C(gelu_twice_slope));
  const C inner_slope = fused(square, C(3 * gelu_twice_slope * gelu_cubic), C(gelu_twice_slope));
  const SigmoidPair<C> s = sigmoid_with_complement<T>(near * inner);
  return fused(s.value * s.complement, near * inner_slope, s.value);
}

// The standard normal distribution's function.
template <class C>
__device__ __forceinline__ C normal_cumulative(C x) {
  return C(0.5) * error_complement(x * C(-0.7071067811865476));
}

// Exact GELU: x times the normal distribution's function.
template <class C>
__device__ __forceinline__ C gelu_erf(C x) {
  return x * normal_cumulative(x);
}

// Beyond 40 the density is 0 in fp64 too; the bound keeps x times it from being Inf times 0.
template <class C>
__device__ __forceinline__ C gelu_erf_derivative(C x) {
  const C density = C(0.3989422804014327) * exponential(x * x * C(-0.5));
  return fused(bounded(x, C(40)), density, normal_cumulative(x));
}

// GELU by either formula.
template <bool exact, class T, class C>
__device__ __forceinline__ C gelu(C x) {
  if constexpr (exact) {
    return gelu_erf(x);
  } else {
    return gelu_tanh<T>(x);
  }
}
template <bool exact, class T, class C>
__device__ __forceinline__ C gelu_derivative(C x) {
  if constexpr (exact) {
    return gelu_erf_derivative(x);
  } else {
    return gelu_tanh_derivative<T>(x);
  }
}

}  // namespace tessera::kernels::cuda

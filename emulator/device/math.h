// Arithmetic with a named rounding mode, fast approximations, and functions that C's <math.h>
// lacks.
// The approximations are the exact functions here. A GPU's results differ in their last bits, so
// tests compare with bounds.
#pragma once

#include <math.h>  // CUDA has the functions in the global namespace

#include <concepts>
#include <type_traits>

#include "emulator/device/language.h"

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

// ---- rounded to nearest even, never fused (-ffp-contract=off)
#define TESSERA_ROUNDED(type, prefix)                       \
  inline type __##prefix##add_rn(type a, type b) {          \
    return a + b;                                           \
  }                                                         \
  inline type __##prefix##sub_rn(type a, type b) {          \
    return a - b;                                           \
  }                                                         \
  inline type __##prefix##mul_rn(type a, type b) {          \
    return a * b;                                           \
  }                                                         \
  inline type __##prefix##div_rn(type a, type b) {          \
    return a / b;                                           \
  }                                                         \
  inline type __##prefix##sqrt_rn(type a) {                 \
    return static_cast<type>(sqrt(static_cast<double>(a))); \
  }                                                         \
  inline type __##prefix##rcp_rn(type a) {                  \
    return type{1} / a;                                     \
  }
TESSERA_ROUNDED(float, f)
TESSERA_ROUNDED(double, d)
#undef TESSERA_ROUNDED
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline double __fma_rn(double a, double b, double c) {
  return fma(a, b, c);
}

// ---- approximations
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __saturatef(float value) {
  return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
}
inline float __exp10f(float value) noexcept {
  return static_cast<float>(pow(10.0, static_cast<double>(value)));
}
#define TESSERA_APPROXIMATION(name, exact)  \
  inline float name(float value) noexcept { \
    return exact(value);                    \
  }
TESSERA_APPROXIMATION(__expf, expf)
TESSERA_APPROXIMATION(__logf, logf)
TESSERA_APPROXIMATION(__log2f, log2f)
TESSERA_APPROXIMATION(__log10f, log10f)
TESSERA_APPROXIMATION(__sinf, sinf)
TESSERA_APPROXIMATION(__cosf, cosf)
TESSERA_APPROXIMATION(__tanf, tanf)
TESSERA_APPROXIMATION(__tanhf, tanhf)
#undef TESSERA_APPROXIMATION
inline float __powf(float base, float exponent) noexcept {
  return powf(base, exponent);
}
inline void __sincosf(float value, float* sine, float* cosine) noexcept {
  *sine = sinf(value);
  *cosine = cosf(value);
}

inline float rsqrtf(float value) {
  return static_cast<float>(1.0 / sqrt(static_cast<double>(value)));
}
inline double rsqrt(double value) {
  return 1.0 / sqrt(value);
}
inline float __frsqrt_rn(float value) {
  return rsqrtf(value);
}

// ---- conversions
#define TESSERA_CONVERSION(name, to, from, expression) \
  inline to name(from value) {                         \
    return static_cast<to>(expression);                \
  }
TESSERA_CONVERSION(__float2int_rn, int, float, rintf(value))
TESSERA_CONVERSION(__float2int_rz, int, float, truncf(value))
TESSERA_CONVERSION(__float2int_rd, int, float, floorf(value))
TESSERA_CONVERSION(__float2int_ru, int, float, ceilf(value))
TESSERA_CONVERSION(__float2uint_rn, unsigned, float, rintf(value))
TESSERA_CONVERSION(__float2uint_rz, unsigned, float, truncf(value))
TESSERA_CONVERSION(__float2ll_rn, long long, float, rintf(value))
TESSERA_CONVERSION(__float2ll_rz, long long, float, truncf(value))
TESSERA_CONVERSION(__double2int_rn, int, double, rint(value))
TESSERA_CONVERSION(__double2int_rz, int, double, trunc(value))
TESSERA_CONVERSION(__double2ll_rn, long long, double, rint(value))
TESSERA_CONVERSION(__double2ll_rz, long long, double, trunc(value))
TESSERA_CONVERSION(__double2float_rn, float, double, value)
TESSERA_CONVERSION(__int2float_rn, float, int, value)
TESSERA_CONVERSION(__uint2float_rn, float, unsigned, value)
TESSERA_CONVERSION(__ll2float_rn, float, long long, value)
TESSERA_CONVERSION(__ull2float_rn, float, unsigned long long, value)
TESSERA_CONVERSION(__int2double_rn, double, int, value)
TESSERA_CONVERSION(__uint2double_rn, double, unsigned, value)
TESSERA_CONVERSION(__ll2double_rn, double, long long, value)
TESSERA_CONVERSION(__ull2double_rn, double, unsigned long long, value)
#undef TESSERA_CONVERSION

// NOLINTEND(bugprone-reserved-identifier)

// ---- minimum and maximum: of a number and a NaN, the number
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  if constexpr (std::floating_point<T>) {
    if (x != x) return y;
    if (y != y) return x;
  }
  return y < x ? y : x;
}
template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  const T x = static_cast<T>(a), y = static_cast<T>(b);
  if constexpr (std::floating_point<T>) {
    if (x != x) return y;
    if (y != y) return x;
  }
  return y > x ? y : x;
}

// CUDA's functions of a single thread.
#pragma once

#include <math.h>  // CUDA has the functions in the global namespace

#include <bit>
#include <type_traits>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

// Rounded to nearest even, never fused (-ffp-contract=off).
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}

inline int __popc(unsigned value) {
  return std::popcount(value);
}
inline long long __double_as_longlong(double value) {
  return std::bit_cast<long long>(value);
}

// A store with a cache hint, which the host ignores.
template <class T>
inline void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// NOLINTEND(bugprone-reserved-identifier)

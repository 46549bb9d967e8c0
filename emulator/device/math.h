// Arithmetic with a named rounding mode.
#pragma once

#include <math.h>  // CUDA has the functions in the global namespace

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

// Rounded to nearest even, never fused (-ffp-contract=off).
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}

// NOLINTEND(bugprone-reserved-identifier)

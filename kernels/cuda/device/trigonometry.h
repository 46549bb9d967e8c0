// Sine and cosine. CUDA's own keep a table in local memory for large arguments, which this
// library's kernels must not use.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/device/gpu.h"

namespace tessera::kernels::cuda {

// x = quadrant * pi/2 + r, |r| <= pi/4, in fp64. pi/2 has two parts, so that r is within 2^-53 of
// its size and quadrants times 2^-107 of the exact one: enough for fp32 results up to 2^50, and for
// fp64 up to 2^26. Infinities give NaN.
struct Angle {
  double r;
  int quadrant;  // modulo 4
};
__device__ __forceinline__ Angle reduced_angle(double x) {
  const double turns = rint(x * 0.63661977236758134308);
  const double near = fma(-turns, 1.57079632679489655800, x);
  const double r = fma(-turns, 6.12323399573676603587e-17, near);
  const double rest = turns - 4 * floor(turns * 0.25);
  return {r, static_cast<int>(rest)};
}

// Taylor's series on |r| <= pi/4: the first omitted term is below 2^-32 in fp32, 2^-58 in fp64.
__device__ __forceinline__ float sine_near_zero(float r) {
  const float z = r * r;
  float p = -2.50521083854417188e-08f;
  p = fmaf(p, z, 2.75573192239858907e-06f);
  p = fmaf(p, z, -1.98412698412698413e-04f);
  p = fmaf(p, z, 8.33333333333333333e-03f);
  p = fmaf(p, z, -1.66666666666666667e-01f);
  return fmaf(p * z, r, r);
}
__device__ __forceinline__ double sine_near_zero(double r) {
  const double z = r * r;
  double p = 2.81145725434552076e-15;
  p = fma(p, z, -7.64716373181981648e-13);
  p = fma(p, z, 1.60590438368216146e-10);
  p = fma(p, z, -2.50521083854417188e-08);
  p = fma(p, z, 2.75573192239858907e-06);
  p = fma(p, z, -1.98412698412698413e-04);
  p = fma(p, z, 8.33333333333333333e-03);
  p = fma(p, z, -1.66666666666666667e-01);
  return fma(p * z, r, r);
}
__device__ __forceinline__ float cosine_near_zero(float r) {
  const float z = r * r;
  float p = -2.75573192239858907e-07f;
  p = fmaf(p, z, 2.48015873015873016e-05f);
  p = fmaf(p, z, -1.38888888888888889e-03f);
  p = fmaf(p, z, 4.16666666666666667e-02f);
  p = fmaf(p, z, -0.5f);
  return fmaf(p, z, 1.0f);
}
__device__ __forceinline__ double cosine_near_zero(double r) {
  const double z = r * r;
  double p = 4.77947733238738530e-14;
  p = fma(p, z, -1.14707455977297247e-11);
  p = fma(p, z, 2.08767569878680990e-09);
  p = fma(p, z, -2.75573192239858907e-07);
  p = fma(p, z, 2.48015873015873016e-05);
  p = fma(p, z, -1.38888888888888889e-03);
  p = fma(p, z, 4.16666666666666667e-02);
  p = fma(p, z, -0.5);
  return fma(p, z, 1.0);
}

// sin(x + shift * pi/2).
template <class C>
__device__ __forceinline__ C sine_of_quadrant(C x, int shift) {
  const Angle angle = reduced_angle(static_cast<double>(x));
  const int quadrant = angle.quadrant + shift;
  const C r = static_cast<C>(angle.r);
  const C value = quadrant % 2 == 0 ? sine_near_zero(r) : cosine_near_zero(r);
  return quadrant % 4 < 2 ? value : -value;
}
template <class C>
__device__ __forceinline__ C sine(C x) {
  return sine_of_quadrant(x, 0);
}
template <class C>
__device__ __forceinline__ C cosine(C x) {
  return sine_of_quadrant(x, 1);
}

}  // namespace tessera::kernels::cuda

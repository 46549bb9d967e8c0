// The kernels of Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) over parts of parameters. Sums
// over a whole parameter are sums of integers in fp64, below 2^53, so the order in which threads
// and ranks add them changes no bit, and an all-reduce of fp64 adds them exactly.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/reduction.h"

namespace tessera::kernels {

// numbers[i, l] = limb l of sums[i], as fp64; if sums[i] is non_finite, all of row i are NaN. The
// sums are normalised, so the limbs of up to 2^21 ranks add exactly.
struct ExactLimbs {
  const ExactSum* sums;  // [n]
  double* numbers;       // [n, ExactSum::limbs]
  std::int64_t n;
};

// totals[i] = the value of row i, a sum over ranks perhaps: from the highest limb to the lowest,
// total += limb * 2^(32 * l - 1088), each product and each sum rounded to fp64.
struct ExactTotals {
  const double* numbers;  // [n, ExactSum::limbs]
  double* totals;         // [n]
  std::int64_t n;
};

// Adds to the sums of squares of rows and columns those of elements [first, first + n) of a stack
// of matrices [matrices, rows, columns]. *total, the sum over the whole stack (within 2^-20 of it),
// is the scale, with 2^e its next power of two (of at least 2^-900):
//   x = g * g * 2^(52 - e); high += floor(x); low += floor((x - floor(x)) * 2^k),
// in fp64, where g = grad * grad_scale in fp32 (fp64 for fp64) and k is 52 minus the number of bits
// of max(rows, columns). All sums stay below 2^53, and a row's or column's has an absolute error of
// at most its elements' number times 2^(e - 52 - k): 2^-104 * max(rows, columns) of the stack's sum
// for each element. A total that is not finite makes the sums NaN. Bytes: read grad.
struct FactorSums {
  const void* grad;
  const double* total;
  double* row_sums;     // [2, matrices * rows]: high, low
  double* column_sums;  // [2, matrices * columns]
  std::int64_t first, n;
  std::int64_t matrices, rows, columns;
  DType dtype;
  float grad_scale;
};

// The second moments of rows and columns from the sums over all ranks, for each matrix:
//   row_var = (1 - weight) * row_var + weight * (high + low * 2^-k) * (2^(e - 52) / columns),
//   column_var likewise with rows,
//   row_factors = row_var * (1 / max(mean of row_var, eps)).
// Computed in fp64, brackets first, and rounded once. The mean is 1 / rows times the sum of the
// rounded row_var: partial sum j of 256 takes rows j, j + 256 ..., and the partial sums meet in
// halves (j with j + 128, then j + 64 ...). A NaN among row_var is kept.
struct FactorUpdate {
  const double* total;
  const double* row_sums;
  const double* column_sums;
  void* row_var;      // [matrices, rows]
  void* column_var;   // [matrices, columns]
  void* row_factors;  // [matrices, rows]
  std::int64_t matrices, rows, columns;
  DType dtype;  // of the moments and factors: fp32 or fp64
  double weight, eps;
};

// The direction u of n elements of a parameter, and its step. g = grad * grad_scale:
//   v = row_factors[row] * column_var[column] of element first + i of [matrices, rows, columns],
//   or,
//       without row_factors, variance[i], after
//       variance = (1 - weight) * variance + weight * g * g if weight > 0;
//   u = g / sqrt(max(v, eps * eps));
//   param -= decay * param; param -= coefficient * u, where
//   coefficient = rate * max(least_scale, sqrt(*param_total / size)) /
//                 max(1, sqrt(*direction_total / size) / clip_threshold), in fp64.
// NaNs of v are kept. Numbers are of dtype (fp32 or fp64), scalars are rounded to it once.
// `direction` or `param` may be null: u is not stored, or nothing moves, and then the totals are
// not read. Bytes, fp32: read the gradient, 8n with param, 4n with variance; write 4n for each of
// direction, param and a variance that changes.
struct AdafactorStep {
  const void* grad;
  const void* row_factors;  // [matrices, rows]; null: a vector
  const void* column_var;   // [matrices, columns]
  void* variance;           // [n]
  void* direction;          // [n]
  void* param;              // [n]
  const double* param_total;
  const double* direction_total;
  std::int64_t first, n;
  std::int64_t rows, columns;
  DType dtype, grad_dtype;
  float grad_scale;
  double weight, eps;
  double rate, decay, least_scale, clip_threshold, size;
};

}  // namespace tessera::kernels

// Products of a few rows with a matrix, as a language model needs them for each new token. Their
// time is that of reading the matrix, which is read once.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// out[rows, n] = x[rows, k] * w (+ bias[n]), all of `dtype`, dense. w is [n, k] when transposed,
// else [k, n]. Sums are fp32 (fp64 for fp64) in an order that depends only on k (not the same as
// matmul's); a 16-bit result is rounded once. Bytes: w, once.
struct Gemv {
  const void* x;
  const void* w;
  const void* bias;  // or null
  void* out;
  std::int64_t rows, n, k;
  bool transposed;
  DType dtype;
};

}  // namespace tessera::kernels

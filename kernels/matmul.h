// Dense matrix products, row-major: c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] (+ c) (+ bias[n]).
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// dtypes: a and b share `dtype` (fp32, bf16, fp16, fp64); c has `out_dtype` (the same, or fp32 for
// the 16-bit types). Products accumulate in fp32 (fp64 for fp64). A 16-bit result is rounded once,
// after alpha, accumulation and bias. Rows of the result do not depend on the number of rows in the
// call, unless a is transposed: then the shape fixes the bits. Flops: 2*m*n*k*batch.
struct Matmul {
  const void* a;  // [m,k], or [k,m] when transpose_a
  const void* b;  // [k,n], or [n,k] when transpose_b
  void* c;        // [m,n]
  std::int64_t m, n, k;
  std::int64_t lda, ldb, ldc;  // elements between rows as stored
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // add to the contents of c
  float alpha = 1.0f;
  const void* bias = nullptr;  // [n] of `dtype`, or none
  DType dtype = DType::float32;
  DType out_dtype = DType::float32;
  std::int64_t batch = 1;  // independent products at these element strides
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

// Products that a queue was given, by what computed them.
struct ProductCounts {
  std::int64_t own = 0;      // the engine's kernels
  std::int64_t library = 0;  // cuBLASLt
};

}  // namespace tessera::kernels

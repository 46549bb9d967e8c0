// Sentence embeddings from hidden states: pools each sequence's rows to one row, and normalizes
// rows.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

enum class PoolingMode : std::uint8_t { mean, cls, max, mean_sqrt_length };

// Sequence i is the rows [starts[i], starts[i] + lengths[i]); the sequences follow each other and
// cover all rows. out[i, c] is the mean, the first, the largest, or the sum / sqrt(length) of x[r,
// c] over its rows r, summed in ascending order. A NaN counts as larger than every number.
struct PoolForward {
  const void* x;                // [rows, dim]
  const std::int32_t* starts;   // [sequences]
  const std::int32_t* lengths;  // [sequences], at least 1
  void* out;                    // fp32 (fp64 for fp64), out_stride elements between rows
  std::int64_t sequences, rows, dim, out_stride;
  PoolingMode mode;
  DType dtype;  // of x
};

// dx (+)= the gradient. The gradient of the maximum goes to the first row that has it.
struct PoolBackward {
  const void* dout;  // fp32 (fp64 for fp64), out_stride elements between rows
  const void* x;     // for max; else may be null
  const std::int32_t* starts;
  const std::int32_t* lengths;
  void* dx;  // [rows, dim] of dtype
  std::int64_t sequences, rows, dim, out_stride;
  PoolingMode mode;
  DType dtype;
  bool accumulate = false;
};

// out[r] = x[r] / max(|x[r]|, eps); the Euclidean norm of each row, in fp32 (fp64 for fp64).
struct NormalizeRows {
  const void* x;  // [rows, dim]
  void* out;      // may equal x
  void* norms;    // [rows] fp32 (fp64 for fp64)
  std::int64_t rows, dim;
  double eps;
  DType dtype;
};

// dx = (dout - y (y . dout)) / norm, or dout / eps if the norm was less than eps.
struct NormalizeRowsBackward {
  const void* dout;
  const void* x;
  const void* norms;
  void* dx;  // may equal dout
  std::int64_t rows, dim;
  double eps;
  DType dtype;
};

}  // namespace tessera::kernels

// Softmax cross-entropy over rows of logits, without storing probabilities.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace tessera::kernels {

// loss[r] = log_sum_exp[r] - logits[r, target[r]]; 0 for targets equal to ignore. A target outside
// [0, vocabulary) is an Error(data).
struct CrossEntropyForward {
  const void* logits;   // [rows, vocabulary], row stride `stride`
  const void* targets;  // [rows] int32 or int64
  DType target_dtype;
  void* loss;         // [rows] fp32 (fp64 for fp64)
  void* log_sum_exp;  // [rows] the same
  std::int64_t rows, vocabulary, stride, ignore;
  DType dtype;
};

// The mean of the losses whose target counts. Everything stays on the queue's device: nobody waits.
struct MeanLoss {
  const void* losses;   // [rows] fp32 or fp64 (`dtype`)
  const void* targets;  // [rows]
  DType target_dtype;
  void* mean;             // one element of dtype: sum / counted, 0 when no target counts
  double* inverse_count;  // 1 / counted, or 0; CrossEntropyBackward reads it
  std::int64_t rows, ignore;
  DType dtype;
};

// dlogits[r,v] = scale * (exp(logits - log_sum_exp) - [v == target]) with scale = *inverse_count *
// *dloss, multiplied in fp64 and rounded to fp32 (fp64 for fp64); rows with the ignored target give
// 0. dlogits may equal logits (in place).
struct CrossEntropyBackward {
  const void* logits;
  const void* targets;
  DType target_dtype;
  const void* log_sum_exp;
  const void* dloss;            // one fp32 (fp64 for fp64)
  const double* inverse_count;  // MeanLoss gave it
  void* dlogits;
  std::int64_t rows, vocabulary, stride, ignore;
  DType dtype;
};

// Row-wise softmax and its backward (dx = y * (dy - sum(dy*y))), for user modules. dx may equal dy.
struct SoftmaxForward {
  const void* x;
  void* out;
  std::int64_t rows, dim;
  DType dtype;
};
struct SoftmaxBackward {
  const void* dout;
  const void* out;
  void* dx;
  std::int64_t rows, dim;
  DType dtype;
};

}  // namespace tessera::kernels

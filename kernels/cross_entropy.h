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

// dlogits[r,v] = scale * (exp(logits - log_sum_exp) - [v == target]); rows with the ignored target
// give 0. dlogits may equal logits (in place).
struct CrossEntropyBackward {
  const void* logits;
  const void* targets;
  DType target_dtype;
  const void* log_sum_exp;
  void* dlogits;
  std::int64_t rows, vocabulary, stride, ignore;
  float scale;
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

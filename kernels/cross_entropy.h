// Softmax cross-entropy over rows of logits, without storing probabilities.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// loss[r] = log_sum_exp[r] - logits[r, target[r]]; 0 for targets equal to ignore. A target outside
// [0, vocabulary) is an Error(data).
//
// The vocabulary may come in blocks of columns, one call each, from the first to the last. Between
// calls log_sum_exp holds the largest logit so far (as a shift: 0 where it is not finite), sum
// holds the sum of the exponentials relative to it, and loss holds the target's logit. The call
// with the last column turns them into the results. Blocks are merged in order: the bits depend on
// how the vocabulary is split.
struct CrossEntropyForward {
  const void* logits;   // [rows, columns], row stride `stride`
  const void* targets;  // [rows] int32 or int64
  DType target_dtype;
  void* loss;         // [rows] fp32 (fp64 for fp64)
  void* log_sum_exp;  // [rows] the same
  std::int64_t rows, vocabulary, stride, ignore;
  DType dtype;
  std::int64_t first = 0;             // logits has [first, first + columns) of the vocabulary
  std::int64_t columns = vocabulary;  // of this block
  void* sum = nullptr;                // [rows] like loss; several blocks need it
};

// The mean of the losses whose target counts. Everything stays on the queue's device, without a
// wait.
struct MeanLoss {
  const void* losses;   // [rows] fp32 or fp64 (`dtype`)
  const void* targets;  // [rows]
  DType target_dtype;
  void* mean;             // one element of dtype: sum / counted, 0 if every target is ignored
  double* inverse_count;  // 1 / counted, or 0; CrossEntropyBackward reads it
  std::int64_t rows, ignore;
  DType dtype;
};

// dlogits[r,v] = scale * (exp(logits - log_sum_exp) - [v == target]) with scale = *inverse_count *
// *dloss, multiplied in fp64 and rounded to fp32 (fp64 for fp64). Rows with the ignored target give
// 0. Works on blocks of columns as above, each by itself. dlogits may equal logits (in place) if
// the dtypes are the same.
struct CrossEntropyBackward {
  const void* logits;
  const void* targets;
  DType target_dtype;
  const void* log_sum_exp;
  const void* dloss;            // one fp32 (fp64 for fp64)
  const double* inverse_count;  // result of MeanLoss
  void* dlogits;                // [rows, columns] of out_dtype, row stride `stride`
  std::int64_t rows, vocabulary, stride, ignore;
  DType dtype;
  std::int64_t first = 0;
  std::int64_t columns = vocabulary;
  DType out_dtype = dtype;  // dtype, or a 16-bit one from fp32
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

// Attention within sequences that follow each other in rows without padding, and dropout of such
// rows.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/random.h"

namespace tessera::kernels {

// Sequence i is the rows [starts[i], starts[i] + lengths[i]); the sequences follow each other and
// cover all rows. A row has heads * head_dim elements, head after head.
struct SequenceShape {
  const std::int32_t* starts;   // [sequences]
  const std::int32_t* lengths;  // [sequences], each from 1 to `longest`
  std::int64_t sequences, rows, longest;
  std::int64_t heads, head_dim;
  float scale;
  // Added to the scaled score of key j and query i: element (j - i + reach - 1) * heads + h of
  // [2 * reach - 1, heads]; reach >= longest. Or null.
  const void* relative_bias;  // fp32 (fp64 for fp64)
  std::int64_t reach;
  float dropout;  // of the probabilities; 0 for none
  RandomKey key;
  // The probability (s,h,i,j) draws element (((first_sequence+s)*heads+h)*capacity+i)*capacity+j.
  std::int64_t first_sequence, capacity;
  DType dtype;
  // Query i sees the keys from i - window to i + window; 0: all keys.
  std::int64_t window = 0;
};

struct SequenceAttentionForward {
  SequenceShape shape;
  const void* q;  // [rows, heads * head_dim], as k, v and out
  const void* k;
  const void* v;
  void* out;
  void* log_sum_exp;  // [heads, rows] fp32 (fp64 for fp64); may be null
};

struct SequenceAttentionBackward {
  SequenceShape shape;
  const void* dout;
  const void* q;
  const void* k;
  const void* v;
  const void* out;
  const void* log_sum_exp;
  void* dq;
  void* dk;
  void* dv;
  // As relative_bias: sums over sequences and queries in ascending order; or null.
  void* relative_bias_gradient;
};

// out[r] = x[r] * keep / (1 - p): element (r, c) is kept when the draw of element
// (first + slots[r]) * dim + c is not below p (kernels/random.h's Dropout). out may equal x.
struct SequenceDropout {
  const void* x;  // [rows, dim]
  void* out;
  const std::int32_t* slots;  // [rows]
  std::int64_t rows, dim, first;
  RandomKey key;
  float p;  // in [0, 1)
  DType dtype;
};

}  // namespace tessera::kernels

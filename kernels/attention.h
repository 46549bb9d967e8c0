// Scaled dot-product attention in blocks: scores exist only in fp32 tiles, and the T x T matrix of
// a batch is never stored.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/random.h"

namespace tessera::kernels {

// Element (b, t, h, d) of a tensor is at base + (b*length + t)*row_stride + h*width + d, so packed
// qkv projections [B*T, 3C] are read in place. The width is head_dim for q and k, and value_dim for
// v and out. Query head h uses key/value head h / (heads / key_heads).
struct AttentionShape {
  std::int64_t batch, heads, key_heads, head_dim;
  std::int64_t query_length, key_length;
  std::int64_t q_stride, k_stride, v_stride, out_stride;  // elements between rows
  float scale;
  bool causal;  // query t sees keys <= t + key_length - query_length
  const std::uint8_t*
      key_mask;   // [batch, key_length], 0 = masked; or null. A row without keys gives 0
  float dropout;  // of the probabilities; 0 for none
  RandomKey key;
  std::int64_t first_sample;  // the probability (b,h,i,j) draws element
                              // (((first_sample+b)*heads+h)*query_length+i)*key_length+j
  DType dtype;
  // `window` and `document_starts` need `causal`. Query t is at position p = t + key_length -
  // query_length.
  std::int64_t window = 0;  // it sees only keys above p - window; 0 for no window
  // [batch, key_length]: it sees only keys from document_starts[p] on. A sample's values do not
  // decrease, and none is negative. Null for no documents.
  const std::int32_t* document_starts = nullptr;
  float soft_cap = 0;  // a scaled score s becomes soft_cap * tanh(s / soft_cap); 0 for no cap
  std::int64_t value_dim = 0;  // 0: head_dim
  // Added to the scaled, capped score of query i and key j: element b*bias_batch_stride +
  // h*bias_head_stride + i*key_length + j. A stride of 0 repeats. fp32 (fp64 for fp64); or null.
  const void* bias = nullptr;
  std::int64_t bias_batch_stride = 0, bias_head_stride = 0;
};

constexpr std::int64_t value_dim_of(const AttentionShape& shape) {
  return shape.value_dim == 0 ? shape.head_dim : shape.value_dim;
}
// The samples and heads that the bias has.
constexpr std::int64_t bias_samples(const AttentionShape& shape) {
  return shape.bias_batch_stride == 0 ? 1 : shape.batch;
}
constexpr std::int64_t bias_heads(const AttentionShape& shape) {
  return shape.bias_head_stride == 0 ? 1 : shape.heads;
}

// True if scores need more than the causal mask, the key mask and dropout. The kernels have code
// of its own for these calls, so that the others do not pay for it.
constexpr bool has_variants(const AttentionShape& shape) {
  return shape.window > 0 || shape.document_starts != nullptr || shape.soft_cap > 0 ||
         shape.bias != nullptr;
}

// Calls of attention that a queue was given, forward and backward, by what computed them.
struct AttentionCounts {
  std::int64_t own = 0;
  std::int64_t library = 0;  // cuDNN
};

struct AttentionForward {
  AttentionShape shape;
  const void* q;
  const void* k;
  const void* v;
  void* out;
  void* log_sum_exp;  // [batch, heads, query_length] fp32 (fp64 for fp64), -inf for a row
                      // without visible keys; may be null
  // No backward follows. A call with one query then needs no blocks, also with log_sum_exp.
  bool inference = false;
};

// Writes dq, dk, dv (strides as q, k, v). dk and dv sum over the query heads of a group in
// ascending order.
struct AttentionBackward {
  AttentionShape shape;
  const void* dout;  // out_stride
  const void* q;
  const void* k;
  const void* v;
  const void* out;
  const void* log_sum_exp;
  void* dq;
  void* dk;
  void* dv;
  const void* dlog_sum_exp = nullptr;  // the gradient of log_sum_exp; null for none
  // As bias: sums over the samples, and in each over the heads, that share an element, in ascending
  // order; null if it is not wanted.
  void* bias_gradient = nullptr;
};

}  // namespace tessera::kernels

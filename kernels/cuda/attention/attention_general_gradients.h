// The probabilities and the gradients of a tile of scores, for the general kernels of attention's
// backward.
#pragma once

#include "kernels/cuda/attention/attention_general.h"

namespace tessera::kernels::cuda::general {

// A tile of a head's queries against keys of its key head.
struct ScoreTile {
  int batch, head, first_query, first_key;
};

template <class T>
struct Operands {
  Rows<T> q, dout, k, v;
};
template <class T>
__device__ __forceinline__ Operands<T> operands_of(const AttentionBackward& a,
                                                   const ScoreTile& at) {
  const AttentionShape& s = a.shape;
  const int key_head = key_head_of(s, at.head);
  return {
      rows_of<T>(a.q, s.query_length, s.q_stride, at.batch, at.first_query, at.head, s.head_dim),
      rows_of<T>(a.dout, s.query_length, s.out_stride, at.batch, at.first_query, at.head,
                 value_dim_of(s)),
      rows_of<T>(a.k, s.key_length, s.k_stride, at.batch, at.first_key, key_head, s.head_dim),
      rows_of<T>(a.v, s.key_length, s.v_stride, at.batch, at.first_key, key_head, value_dim_of(s))};
}

// Computes the probabilities of a tile after dropout, and the gradients of its scores before the
// cap, or with `of_biased` those of the biased scores.
template <class T, bool variants, bool of_biased = false>
__device__ __forceinline__ void make_gradients(
    const AttentionBackward& a, const Compute<T>* row_products, const AttentionDropout& dropout,
    const ScoreTile& at, const Operands<T>& operands, Scores<Compute<T>>& probabilities,
    Scores<Compute<T>>& gradients, Memory<Compute<T>>& memory) {
  using C = Compute<T>;
  const AttentionShape& shape = a.shape;
  add_products(probabilities, operands.q, operands.k, memory);
  add_products(gradients, operands.dout, operands.v, memory);
  const std::uint8_t* const mask = mask_of(shape, at.batch);
  const auto kept_scale = static_cast<C>(dropout.kept_scale);
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const int query = at.first_query + of_thread * row() + i;
    const bool there = query < shape.query_length;
    const std::int64_t index = statistic_index(shape, at.batch, at.head, query);
    const C log_sum_exp = there ? static_cast<const C*>(a.log_sum_exp)[index] : C{0};
    const C row_product = there ? row_products[index] : C{0};
    const std::uint32_t kept =
        kept_scores(shape, dropout.threshold, at.batch, at.head, query, at.first_key);
    const int first_seen = first_key_of<variants>(shape, at.batch, query);
#pragma unroll
    for (int j = 0; j < of_thread; ++j) {
      const int key = at.first_key + of_thread * column() + j;
      const C score = scaled<variants>(shape, probabilities[i][j]);
      const bool seen = sees(shape, mask, query, key) && (!variants || key >= first_seen);
      const C bias = seen ? bias_of<variants, C>(shape, at.batch, at.head, query, key) : C{0};
      // Without keys to see the log-sum-exp is -inf, as the score under a bias of -inf.
      const C probability = seen && (!variants || log_sum_exp != -static_cast<C>(INFINITY))
                                ? exponential(score + bias - log_sum_exp)
                                : C{0};
      const bool keep = (kept >> j & 1u) != 0;
      probabilities[i][j] = keep ? probability * kept_scale : C{0};
      const C gradient = keep ? gradients[i][j] * kept_scale : C{0};
      gradients[i][j] = probability * (gradient - row_product);
      if (variants && !of_biased && shape.soft_cap > 0.0f) {
        const C ratio = score / static_cast<C>(shape.soft_cap);
        gradients[i][j] *= C{1} - ratio * ratio;
      }
    }
  }
}

}  // namespace tessera::kernels::cuda::general

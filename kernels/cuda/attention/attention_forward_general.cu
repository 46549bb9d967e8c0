// Attention forward for every floating type, head size and stride, on ordinary cores. A block has
// 32 queries of one head and a panel of the output's columns; it processes tiles of 32 keys with a
// running softmax.
#include "kernels/cuda/attention/attention_general.h"

namespace tessera::kernels::cuda {
namespace general {
namespace {

template <bool variants, class C>
__device__ __forceinline__ void scale_scores(const AttentionShape& shape, const HeadTile& queries,
                                             int first_key, Scores<C>& scores) {
  const std::uint8_t* const mask = mask_of(shape, queries.batch);
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const int query = queries.first + of_thread * row() + i;
    const int first_seen = first_key_of<variants>(shape, queries.batch, query);
#pragma unroll
    for (int j = 0; j < of_thread; ++j) {
      const int key = first_key + of_thread * column() + j;
      const bool seen = sees(shape, mask, query, key) && (!variants || key >= first_seen);
      scores[i][j] = seen ? scaled<variants>(shape, scores[i][j]) +
                                bias_of<variants, C>(shape, queries.batch, queries.head, query, key)
                          : -static_cast<C>(INFINITY);
    }
  }
}

template <class C>
__device__ __forceinline__ void drop(const AttentionShape& shape, std::uint32_t threshold,
                                     const HeadTile& queries, int first_key, Scores<C>& scores) {
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const int query = queries.first + of_thread * row() + i;
    const std::uint32_t kept =
        kept_scores(shape, threshold, queries.batch, queries.head, query, first_key);
#pragma unroll
    for (int j = 0; j < of_thread; ++j) {
      if ((kept >> j & 1u) == 0) scores[i][j] = 0;
    }
  }
}

// Divides by the sums of probabilities; writes the log-sum-exps if requested.
template <class C>
__device__ __forceinline__ void finish(const AttentionShape& shape, const HeadTile& queries,
                                       const SoftmaxRows<C>& rows, C kept_scale, Panel<C>& panel,
                                       C* log_sum_exp) {
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const C sum = reduce_row(rows.sum[i], [](C a, C b) { return a + b; });
    const C factor = sum == C{0} ? C{0} : kept_scale / sum;
#pragma unroll
    for (int j = 0; j < panel_of_thread<C>; ++j) panel[i][j] *= factor;
    const int r = of_thread * row() + i;
    if (log_sum_exp != nullptr && column() == 0 && r < queries.rows) {
      log_sum_exp[statistic_index(shape, queries.batch, queries.head, queries.first + r)] =
          rows.maximum[i] + log(sum);  // -inf for a row without visible keys
    }
  }
}

template <class T, bool variants>
__global__ void __launch_bounds__(threads, least_blocks)
    forward_kernel(AttentionForward a, AttentionDropout dropout, unsigned panels) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const AttentionShape& shape = a.shape;
  const HeadTile queries = head_tile<tile>(blockIdx.x / panels, shape.heads, shape.query_length);
  const auto panel_index = static_cast<int>(blockIdx.x % panels);
  const int first_column = panel_index * panel_columns<C>;
  const int key_head = key_head_of(shape, queries.head);
  const Rows<T> q = rows_of<T>(a.q, shape.query_length, shape.q_stride, queries.batch,
                               queries.first, queries.head, shape.head_dim);
  SoftmaxRows<C> rows;
  for (int i = 0; i < of_thread; ++i) {
    rows.maximum[i] = -static_cast<C>(INFINITY);
    rows.sum[i] = 0;
  }
  Panel<C> panel = {};
  const int keys = keys_seen(shape, queries.first + queries.rows - 1);
  const int first_key =
      tile_start(first_key_of<variants>(shape, queries.batch, queries.first), tile);
  for (int key = first_key; key < keys; key += tile) {
    Scores<C> scores = {};
    add_products(scores, q,
                 rows_of<T>(a.k, shape.key_length, shape.k_stride, queries.batch, key, key_head,
                            shape.head_dim),
                 memory);
    scale_scores<variants>(shape, queries, key, scores);
    softmax_step(rows, scores, panel);
    if (dropout.threshold != 0) drop(shape, dropout.threshold, queries, key, scores);
    store_weights<false>(scores, memory);
    add_weighted(panel,
                 rows_of<T>(a.v, shape.key_length, shape.v_stride, queries.batch, key, key_head,
                            value_dim_of(shape)),
                 first_column, memory);
  }
  finish(shape, queries, rows, static_cast<C>(dropout.kept_scale), panel,
         panel_index == 0 ? static_cast<C*>(a.log_sum_exp) : nullptr);
  T* const out = head_rows(static_cast<T*>(a.out), shape.query_length, shape.out_stride,
                           queries.batch, queries.first, queries.head, value_dim_of(shape));
  store_panel<T>(panel, C{1}, out, shape.out_stride, queries.rows, first_column,
                 value_dim_of(shape));
}

template <class T, bool variants>
void launch_forward(const AttentionForward& a, Context& context) {
  const AttentionShape& s = a.shape;
  const std::int64_t panels = panels_of(s, value_dim_of(s));
  launch(context,
         {"attention_forward_general",
          {s.batch, s.heads, s.query_length, s.key_length, s.head_dim, value_dim_of(s)},
          {reads(a.q, query_bytes(s)), reads(a.k, key_bytes(s)), reads(a.v, value_bytes(s)),
           reads(s.key_mask, mask_bytes(s)), reads(s.document_starts, document_bytes(s)),
           reads(s.bias, bias_bytes(s)), writes(a.out, output_bytes(s)),
           writes(a.log_sum_exp, statistic_bytes(s))}},
         {attention_blocks(s, s.heads, s.query_length, tile, panels), threads},
         forward_kernel<T, variants>, a, dropout_of(s), static_cast<unsigned>(panels));
}

}  // namespace
}  // namespace general

void attention_forward_general(const AttentionForward& a, Context& context) {
  for_floating(a.shape.dtype, "attention_forward", [&]<class T>(TypeTag<T>) {
    if (has_variants(a.shape)) {
      general::launch_forward<T, true>(a, context);
    } else {
      general::launch_forward<T, false>(a, context);
    }
  });
}

}  // namespace tessera::kernels::cuda

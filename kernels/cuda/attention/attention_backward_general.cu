// Attention backward for every floating type, head size and stride, on ordinary cores. A block has
// 32 queries (or keys) of one head and a panel of their gradients' columns;
// attention_query_gradients.h and attention_key_gradients.h have the formulas and the order of
// sums.
#include "kernels/cuda/attention/attention_general_gradients.h"

namespace tessera::kernels::cuda {
namespace general {
namespace {

template <class T, bool variants>
__global__ void __launch_bounds__(threads, least_blocks)
    query_gradient_kernel(AttentionBackward a, const Compute<T>* row_products,
                          AttentionDropout dropout, unsigned panels) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const AttentionShape& shape = a.shape;
  const HeadTile queries = head_tile<tile>(blockIdx.x / panels, shape.heads, shape.query_length);
  const int first_column = static_cast<int>(blockIdx.x % panels) * panel_columns<C>;
  Panel<C> dq = {};
  const int keys = keys_seen(shape, queries.first + queries.rows - 1);
  const int first_key =
      tile_start(first_key_of<variants>(shape, queries.batch, queries.first), tile);
  for (int key = first_key; key < keys; key += tile) {
    const ScoreTile at{queries.batch, queries.head, queries.first, key};
    const Operands<T> operands = operands_of<T>(a, at);
    Scores<C> probabilities = {}, gradients = {};
    make_gradients<T, variants>(a, row_products, dropout, at, operands, probabilities, gradients,
                                memory);
    store_weights<false>(gradients, memory);
    add_weighted(dq, operands.k, first_column, memory);
  }
  T* const to = head_rows(static_cast<T*>(a.dq), shape.query_length, shape.q_stride, queries.batch,
                          queries.first, queries.head, shape.head_dim);
  store_panel<T>(dq, static_cast<C>(shape.scale), to, shape.q_stride, queries.rows, first_column,
                 shape.head_dim);
}

template <class T, bool variants>
__global__ void __launch_bounds__(threads, least_blocks)
    key_gradient_kernel(AttentionBackward a, const Compute<T>* row_products,
                        AttentionDropout dropout, unsigned panels) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const AttentionShape& shape = a.shape;
  const HeadTile keys = head_tile<tile>(blockIdx.x / panels, shape.key_heads, shape.key_length);
  const int first_column = static_cast<int>(blockIdx.x % panels) * panel_columns<C>;
  const int group = static_cast<int>(shape.heads / shape.key_heads);
  const int first_query = first_query_seeing(shape, keys.first) / tile * tile;
  const int last_query = variants ? queries_seeing(shape, keys.batch, keys.first + keys.rows - 1)
                                  : static_cast<int>(shape.query_length);
  Panel<C> dk = {}, dv = {};
  for (int head = keys.head * group; head < (keys.head + 1) * group; ++head) {
    for (int query = first_query; query < last_query; query += tile) {
      const ScoreTile at{keys.batch, head, query, keys.first};
      const Operands<T> operands = operands_of<T>(a, at);
      Scores<C> probabilities = {}, gradients = {};
      make_gradients<T, variants>(a, row_products, dropout, at, operands, probabilities, gradients,
                                  memory);
      store_weights<true>(probabilities, memory);
      add_weighted(dv, operands.dout, first_column, memory);
      store_weights<true>(gradients, memory);
      add_weighted(dk, operands.q, first_column, memory);
    }
  }
  T* const to_k = head_rows(static_cast<T*>(a.dk), shape.key_length, shape.k_stride, keys.batch,
                            keys.first, keys.head, shape.head_dim);
  T* const to_v = head_rows(static_cast<T*>(a.dv), shape.key_length, shape.v_stride, keys.batch,
                            keys.first, keys.head, value_dim_of(shape));
  store_panel<T>(dk, static_cast<C>(shape.scale), to_k, shape.k_stride, keys.rows, first_column,
                 shape.head_dim);
  store_panel<T>(dv, C{1}, to_v, shape.v_stride, keys.rows, first_column, value_dim_of(shape));
}

template <class T, bool variants>
void launch_backward(const AttentionBackward& a, const Compute<T>* row_products, Context& context) {
  const AttentionShape& s = a.shape;
  const std::int64_t panels = panels_of(s, s.head_dim);
  const std::int64_t key_panels = panels_of(s, widest_row(s));
  const Access reads_q = reads(a.q, query_bytes(s));
  const Access reads_dout = reads(a.dout, output_bytes(s));
  const Access reads_k = reads(a.k, key_bytes(s));
  const Access reads_v = reads(a.v, value_bytes(s));
  const Access reads_log_sum_exp = reads(a.log_sum_exp, statistic_bytes(s));
  const Access reads_products = reads(row_products, statistic_bytes(s));
  const Access reads_mask = reads(s.key_mask, mask_bytes(s));
  const Access reads_documents = reads(s.document_starts, document_bytes(s));
  const Access reads_bias = reads(s.bias, bias_bytes(s));
  launch(context,
         {"attention_key_gradients_general",
          {s.batch, s.key_heads, s.query_length, s.key_length, s.head_dim, value_dim_of(s)},
          {reads_q, reads_dout, reads_k, reads_v, reads_log_sum_exp, reads_products, reads_mask,
           reads_documents, reads_bias, writes(a.dk, key_bytes(s)), writes(a.dv, value_bytes(s))}},
         {attention_blocks(s, s.key_heads, s.key_length, tile, key_panels), threads},
         key_gradient_kernel<T, variants>, a, row_products, dropout_of(s),
         static_cast<unsigned>(key_panels));
  launch(context,
         {"attention_query_gradients_general",
          {s.batch, s.heads, s.query_length, s.key_length, s.head_dim, value_dim_of(s)},
          {reads_q, reads_dout, reads_k, reads_v, reads_log_sum_exp, reads_products, reads_mask,
           reads_documents, reads_bias, writes(a.dq, query_bytes(s))}},
         {attention_blocks(s, s.heads, s.query_length, tile, panels), threads},
         query_gradient_kernel<T, variants>, a, row_products, dropout_of(s),
         static_cast<unsigned>(panels));
}

}  // namespace
}  // namespace general

void attention_backward_general(const AttentionBackward& a, const void* row_products,
                                Context& context) {
  for_floating(a.shape.dtype, "attention_backward", [&]<class T>(TypeTag<T>) {
    const auto* const products = static_cast<const Compute<T>*>(row_products);
    if (has_variants(a.shape)) {
      general::launch_backward<T, true>(a, products, context);
    } else {
      general::launch_backward<T, false>(a, products, context);
    }
  });
}

}  // namespace tessera::kernels::cuda

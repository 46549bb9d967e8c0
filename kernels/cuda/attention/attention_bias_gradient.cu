// The gradient of attention's bias, on ordinary cores. A block has 32 queries and 32 keys of one
// matrix of the bias. It recomputes the scores and the gradients of the probabilities of every
// sample and head that share the matrix, and sums them in ascending order: each element has one
// owner. Bytes that must move: q, k, v and dout once for each of the matrix's tiles in their rows
// and columns, the bias and the gradient once.
#include "kernels/cuda/attention/attention_general_gradients.h"

namespace tessera::kernels::cuda {
namespace general {
namespace {

template <class T>
__global__ void __launch_bounds__(threads, least_blocks)
    bias_gradient_kernel(AttentionBackward a, const Compute<T>* row_products,
                         AttentionDropout dropout, unsigned key_tiles) {
  using C = Compute<T>;
  auto& memory = shared_memory<Memory<C>>();
  const AttentionShape& shape = a.shape;
  const HeadTile matrix =
      head_tile<tile>(blockIdx.x / key_tiles, bias_heads(shape), shape.query_length);
  const int first_key = static_cast<int>(blockIdx.x % key_tiles) * tile;
  const int last_sample =
      shape.bias_batch_stride != 0 ? matrix.batch + 1 : static_cast<int>(shape.batch);
  const int last_head =
      shape.bias_head_stride != 0 ? matrix.head + 1 : static_cast<int>(shape.heads);
  const bool after_keys = keys_seen(shape, matrix.first + matrix.rows - 1) <= first_key;
  Scores<C> sums = {};
  for (int sample = matrix.batch; sample < last_sample && !after_keys; ++sample) {
    // The first key that a query sees grows with the query.
    if (first_key_of<true>(shape, sample, matrix.first) >= first_key + tile) continue;
    for (int head = matrix.head; head < last_head; ++head) {
      const ScoreTile at{sample, head, matrix.first, first_key};
      Scores<C> probabilities = {}, gradients = {};
      make_gradients<T, true, true>(a, row_products, dropout, at, operands_of<T>(a, at),
                                    probabilities, gradients, memory);
#pragma unroll
      for (int i = 0; i < of_thread; ++i) {
#pragma unroll
        for (int j = 0; j < of_thread; ++j) sums[i][j] += gradients[i][j];
      }
    }
  }
  C* const to = static_cast<C*>(a.bias_gradient) + matrix.batch * shape.bias_batch_stride +
                matrix.head * shape.bias_head_stride;
#pragma unroll
  for (int i = 0; i < of_thread; ++i) {
    const int query = matrix.first + of_thread * row() + i;
#pragma unroll
    for (int j = 0; j < of_thread; ++j) {
      const int key = first_key + of_thread * column() + j;
      if (query < shape.query_length && key < shape.key_length) {
        to[query * shape.key_length + key] = sums[i][j];
      }
    }
  }
}

}  // namespace
}  // namespace general

void attention_bias_gradient(const AttentionBackward& a, const void* row_products,
                             Context& context) {
  for_floating(a.shape.dtype, "attention_backward", [&]<class T>(TypeTag<T>) {
    const AttentionShape& s = a.shape;
    const std::int64_t key_tiles = (s.key_length + general::tile - 1) / general::tile;
    AttentionShape matrices = s;
    matrices.batch = bias_samples(s);
    launch(context,
           {"attention_bias_gradient",
            {s.batch, s.heads, s.query_length, s.key_length, s.head_dim, value_dim_of(s)},
            {reads(a.q, query_bytes(s)), reads(a.k, key_bytes(s)), reads(a.v, value_bytes(s)),
             reads(a.dout, output_bytes(s)), reads(a.log_sum_exp, statistic_bytes(s)),
             reads(row_products, statistic_bytes(s)), reads(s.key_mask, mask_bytes(s)),
             reads(s.document_starts, document_bytes(s)), reads(s.bias, bias_bytes(s)),
             writes(a.bias_gradient, bias_bytes(s))}},
           {attention_blocks(matrices, bias_heads(s), s.query_length, general::tile, key_tiles),
            general::threads},
           general::bias_gradient_kernel<T>, a, static_cast<const Compute<T>*>(row_products),
           dropout_of(s), static_cast<unsigned>(key_tiles));
  });
}

}  // namespace tessera::kernels::cuda

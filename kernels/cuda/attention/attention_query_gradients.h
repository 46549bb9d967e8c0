// Attention's query gradients on tensor cores, for 16-bit types. As in the forward, a block has 64
// queries of one head and processes keys and values in tiles; it recomputes the probabilities from
// the log-sum-exps. With P the probabilities, D the row products and keep the dropout:
//   dP = dout v^T,   dS = P (keep(dP) - D),   dq = scale dS k.
// dS of a tile is rounded to the 16-bit type as the last product's operand.
#pragma once

#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/device/math.h"

namespace tessera::kernels::cuda {

// Tiles have fewer keys if the queries' gradients fill the registers.
template <int head_size>
inline constexpr int query_gradient_keys = head_size <= 96 ? 64 : 32;

template <class T, int head_size>
struct QueryGradientMemory {
  Tile<T, attention_rows, head_size> q;  // at the end it holds the gradient before the store
  Tile<T, attention_rows, head_size> dout;
  Tile<T, query_gradient_keys<head_size>, head_size> k[2];
  Tile<T, query_gradient_keys<head_size>, head_size> v[2];
};

// A warp's part of a block.
template <class T, int head_size, bool variants>
struct QueryGradientWarp {
  static constexpr int keys = query_gradient_keys<head_size>;
  static constexpr int score_tiles = keys / 8;

  const AttentionShape& shape;
  const AttentionDropout& dropout;
  QueryGradientMemory<T, head_size>& memory;
  HeadTile tile;
  int first_row;              // of the warp in the block
  float log_sum_exp[2] = {};  // of the lane's rows, times log2(e)
  float row_product[2] = {};
  KeyBounds bounds = {};
  float sums[head_size / 8][4] = {};

  // The lane's first query; its second is 8 below.
  __device__ __forceinline__ int query() const {
    return tile.first + first_row + static_cast<int>(threadIdx.x) % warp_size / 4;
  }

  __device__ __forceinline__ void load_statistics(const float* log_sum_exps,
                                                  const float* row_products) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int at = query() + 8 * row;
      const bool there = at < tile.first + tile.rows;
      const std::int64_t index = statistic_index(shape, tile.batch, tile.head, at);
      log_sum_exp[row] = probability_shift(there ? log_sum_exps[index] : -INFINITY);
      row_product[row] = there ? row_products[index] : 0.0f;
    }
    bounds = KeyBounds::of<variants>(shape, tile, query());
  }

  // Turns scores into probabilities, 0 where a key is not visible.
  __device__ __forceinline__ void make_probabilities(float (&scores)[score_tiles][4],
                                                     int first_key) const {
    const float scale = (variants ? scale_after_cap(shape) : shape.scale) * log2_of_e;
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if constexpr (variants) scores[n][e] = capped(shape, scores[n][e]);
        scores[n][e] = flushed_exp2(fmaf(scores[n][e], scale, -log_sum_exp[e / 2]));
      }
    }
    if (all_seen(shape, tile.first, first_key, keys) && !(variants && bounds.last > first_key)) {
      return;
    }
    const auto seen =
        seen_keys<keys, variants>(shape, mask_of(shape, tile.batch), query(), first_key, bounds);
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!seen.at(n, e)) scores[n][e] = 0.0f;
      }
    }
  }

  // Applies dropout to gradients of probabilities.
  __device__ __forceinline__ void drop(float (&gradients)[score_tiles][4], int first_key) const {
    if (dropout.threshold == 0) return;
    const auto kept_scale = static_cast<float>(dropout.kept_scale);
    const std::uint64_t draw = first_draw(shape, tile.batch, tile.head, tile.first + first_row) +
                               static_cast<std::uint64_t>(first_key);
    const auto kept = kept_keys<keys>(shape, draw, dropout.threshold);
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        gradients[n][e] = kept.at(n, e) ? gradients[n][e] * kept_scale : 0.0f;
      }
    }
  }

  // Adds the tile of keys from first_key on, which is in stage `stage`.
  __device__ __forceinline__ void add(int stage, int first_key) {
    float probabilities[score_tiles][4] = {};
    multiply_transposed(probabilities, memory.q, first_row, memory.k[stage]);
    make_probabilities(probabilities, first_key);
    float gradients[score_tiles][4] = {};
    multiply_transposed(gradients, memory.dout, first_row, memory.v[stage]);
    drop(gradients, first_key);
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        gradients[n][e] = probabilities[n][e] * (gradients[n][e] - row_product[e / 2]);
        if constexpr (variants) {
          gradients[n][e] *= slope_of_cap(shape, probabilities[n][e], log_sum_exp[e / 2]);
        }
      }
    }
    multiply(sums, gradients, memory.k[stage]);
  }

  __device__ __forceinline__ void finish(T* dq) {
#pragma unroll
    for (int n = 0; n < head_size / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[n][e] *= shape.scale;
    }
    T* const to = head_rows(dq, shape.query_length, shape.q_stride, tile.batch, tile.first,
                            tile.head, shape.head_dim);
    store_rows(memory.q, first_row, sums,
               {to, shape.q_stride, tile.rows, static_cast<int>(shape.head_dim)});
  }
};

template <class T, int head_size>
__device__ __forceinline__ void copy_queries(const AttentionBackward& a, const HeadTile& tile,
                                             QueryGradientMemory<T, head_size>& memory) {
  const AttentionShape& shape = a.shape;
  const T* const q = head_rows(static_cast<const T*>(a.q), shape.query_length, shape.q_stride,
                               tile.batch, tile.first, tile.head, shape.head_dim);
  const T* const dout =
      head_rows(static_cast<const T*>(a.dout), shape.query_length, shape.out_stride, tile.batch,
                tile.first, tile.head, value_dim_of(shape));
  copy_async<attention_threads, T>(
      memory.q, {q, shape.q_stride, tile.rows, static_cast<int>(shape.head_dim)});
  copy_async<attention_threads, T>(
      memory.dout, {dout, shape.out_stride, tile.rows, static_cast<int>(value_dim_of(shape))});
}

template <class T, int head_size, bool variants>
__global__ void __launch_bounds__(attention_threads)
    query_gradient_kernel(AttentionBackward a, const float* row_products,
                          AttentionDropout dropout) {
  constexpr int keys_of_a_tile = query_gradient_keys<head_size>;
  auto& memory = *dynamic_shared_memory<QueryGradientMemory<T, head_size>>();
  const AttentionShape& shape = a.shape;
  const HeadTile tile =
      head_tile_from_last<attention_rows>(blockIdx.x, shape.heads, shape.query_length);
  const KeyRows<T> source(shape, a.k, a.v, tile.batch, key_head_of(shape, tile.head));
  QueryGradientWarp<T, head_size, variants> warp{shape, dropout, memory, tile,
                                                 static_cast<int>(threadIdx.x) / warp_size * 16};
  warp.load_statistics(static_cast<const float*>(a.log_sum_exp), row_products);
  const int keys = keys_seen(shape, tile.first + tile.rows - 1);
  const int first_key =
      variants ? tile_start(first_key_seen(shape, tile.batch, tile.first), keys_of_a_tile) : 0;
  if (keys > first_key) {
    copy_queries(a, tile, memory);
    source.copy(first_key, memory.k[0], memory.v[0]);
    copy_async_commit();
  }
  int stage = 0;
  for (int key = first_key; key < keys; key += keys_of_a_tile) {
    copy_async_wait<0>();
    __syncthreads();  // the tile has arrived, and all warps are done with the previous one
    if (key + keys_of_a_tile < keys) {
      source.copy(key + keys_of_a_tile, memory.k[1 - stage], memory.v[1 - stage]);
      copy_async_commit();
    }
    warp.add(stage, key);
    stage = 1 - stage;
  }
  warp.finish(static_cast<T*>(a.dq));
}

template <class T, bool variants>
void launch_query_gradients(const AttentionBackward& a, const float* row_products,
                            Context& context) {
  const AttentionShape& s = a.shape;
  for_head_size<variants>(widest_row(s), [&](auto head_size) {
    launch(context,
           {"attention_query_gradients",
            {s.batch, s.heads, s.query_length, s.key_length, s.head_dim, value_dim_of(s)},
            {reads(a.q, query_bytes(s)), reads(a.k, key_bytes(s)), reads(a.v, value_bytes(s)),
             reads(a.dout, output_bytes(s)), reads(a.log_sum_exp, statistic_bytes(s)),
             reads(row_products, statistic_bytes(s)), reads(s.key_mask, mask_bytes(s)),
             reads(s.document_starts, document_bytes(s)), writes(a.dq, query_bytes(s))}},
           {attention_blocks(s, s.heads, s.query_length, attention_rows), attention_threads,
            sizeof(QueryGradientMemory<T, head_size>)},
           query_gradient_kernel<T, head_size, variants>, a, row_products, dropout_of(s));
  });
}

}  // namespace tessera::kernels::cuda

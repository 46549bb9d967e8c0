// Attention forward on tensor cores, for 16-bit types. A block has 64 queries of one head. It
// processes tiles of 64 keys and values; each is copied to shared memory during the computation on
// the previous one. Scores, running maxima and sums, and the sums of values are fp32 in registers;
// the probabilities of a tile are rounded to the 16-bit type as the second product's operand.
//
// Device memory read: q once, k and v once for each tile of queries (they stay in the L2 cache).
#pragma once

#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/device/math.h"

namespace tessera::kernels::cuda {

inline constexpr int forward_keys = 64;

template <class T, int head_size>
struct AttentionForwardMemory {
  Tile<T, attention_rows, head_size> q;  // at the end it holds the output before the store
  Tile<T, forward_keys, head_size> k[2];
  Tile<T, forward_keys, head_size> v[2];
};

// The running softmax of a lane's two rows. `maximum` is of the scores before scaling, `sum` covers
// only the lane's own columns.
struct SoftmaxRows {
  float maximum[2];
  float sum[2];
};

// Adds a tile of scores before scaling, -inf where a key is not visible, to the running softmax.
// The scores become e^(scale * (score - maximum)), and the sums over earlier tiles are scaled to
// the new maximum. `scale` is positive, so the largest score is the largest scaled one.
template <int score_tiles, int value_tiles>
__device__ __forceinline__ void softmax_step(SoftmaxRows& rows, float scale,
                                             float (&scores)[score_tiles][4],
                                             float (&sums)[value_tiles][4]) {
  const float factor_of_scores = scale * log2_of_e;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float maximum = rows.maximum[row];
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
      maximum = fmaxf(maximum, fmaxf(scores[n][2 * row], scores[n][2 * row + 1]));
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(whole_warp, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(whole_warp, maximum, 2));
    // For a row without visible keys so far, any finite shift works: e^(-inf) = 0. NaNs stay NaNs.
    const float shift = maximum == -INFINITY ? 0.0f : maximum * factor_of_scores;
    const float factor = flushed_exp2(fmaf(rows.maximum[row], factor_of_scores, -shift));
    float total = 0.0f;
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
      for (int e = 2 * row; e < 2 * row + 2; ++e) {
        scores[n][e] = flushed_exp2(fmaf(scores[n][e], factor_of_scores, -shift));
        total += scores[n][e];
      }
    }
    rows.maximum[row] = maximum;
    rows.sum[row] = fmaf(rows.sum[row], factor, total);
#pragma unroll
    for (int n = 0; n < value_tiles; ++n) {
      sums[n][2 * row] *= factor;
      sums[n][2 * row + 1] *= factor;
    }
  }
}

// A warp's part of a block.
template <class T, int head_size, bool variants>
struct AttentionForwardWarp {
  static constexpr int score_tiles = forward_keys / 8;

  const AttentionForward& arguments;
  const AttentionDropout& dropout;
  AttentionForwardMemory<T, head_size>& memory;
  HeadTile tile;
  int first_row;  // of the warp in the block
  KeyBounds bounds = {};
  SoftmaxRows rows{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
  float sums[head_size / 8][4] = {};

  // The lane's first query; its second is 8 below.
  __device__ __forceinline__ int query() const {
    return tile.first + first_row + static_cast<int>(threadIdx.x) % warp_size / 4;
  }

  __device__ __forceinline__ void load_bounds() {
    bounds = KeyBounds::of<variants>(arguments.shape, tile, query());
  }
  // The scale of the scores that softmax_step() takes.
  __device__ __forceinline__ float scale() const {
    return variants ? scale_after_cap(arguments.shape) : arguments.shape.scale;
  }

  // Adds the tile of keys from first_key on, which is in stage `stage`.
  __device__ __forceinline__ void add(int stage, int first_key) {
    const AttentionShape& shape = arguments.shape;
    float scores[score_tiles][4] = {};
    multiply_transposed(scores, memory.q, first_row, memory.k[stage]);
    if constexpr (variants) {
#pragma unroll
      for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[n][e] = capped(shape, scores[n][e]);
      }
    }
    if (!all_seen(shape, tile.first, first_key, forward_keys) ||
        (variants && bounds.last > first_key)) {
      const auto seen = seen_keys<forward_keys, variants>(shape, mask_of(shape, tile.batch),
                                                          query(), first_key, bounds);
#pragma unroll
      for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (!seen.at(n, e)) scores[n][e] = -INFINITY;
        }
      }
    }
    softmax_step(rows, scale(), scores, sums);
    if (dropout.threshold != 0) {
      const std::uint64_t draw = first_draw(shape, tile.batch, tile.head, tile.first + first_row) +
                                 static_cast<std::uint64_t>(first_key);
      const auto kept = kept_keys<forward_keys>(shape, draw, dropout.threshold);
#pragma unroll
      for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (!kept.at(n, e)) scores[n][e] = 0.0f;
        }
      }
    }
    multiply(sums, scores, memory.v[stage]);
  }

  // Divides by the sums of probabilities and writes the rows.
  __device__ __forceinline__ void finish() {
    const AttentionShape& shape = arguments.shape;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float sum = rows.sum[row];
      sum += __shfl_xor_sync(whole_warp, sum, 1);
      sum += __shfl_xor_sync(whole_warp, sum, 2);
      const float factor = sum == 0.0f ? 0.0f : static_cast<float>(dropout.kept_scale) / sum;
#pragma unroll
      for (int n = 0; n < head_size / 8; ++n) {
        sums[n][2 * row] *= factor;
        sums[n][2 * row + 1] *= factor;
      }
      const int at = query() + 8 * row;
      if (arguments.log_sum_exp != nullptr && threadIdx.x % 4 == 0 && at < tile.first + tile.rows) {
        static_cast<float*>(
            arguments.log_sum_exp)[statistic_index(shape, tile.batch, tile.head, at)] =
            rows.maximum[row] * scale() + logf(sum);  // -inf for a row without visible keys
      }
    }
    T* const out = head_rows(static_cast<T*>(arguments.out), shape.query_length, shape.out_stride,
                             tile.batch, tile.first, tile.head, value_dim_of(shape));
    store_rows(memory.q, first_row, sums,
               {out, shape.out_stride, tile.rows, static_cast<int>(value_dim_of(shape))});
  }
};

template <class T, int head_size, bool variants>
__global__ void __launch_bounds__(attention_threads)
    attention_forward_kernel(AttentionForward a, AttentionDropout dropout) {
  auto& memory = *dynamic_shared_memory<AttentionForwardMemory<T, head_size>>();
  const AttentionShape& shape = a.shape;
  const HeadTile tile =
      head_tile_from_last<attention_rows>(blockIdx.x, shape.heads, shape.query_length);
  AttentionForwardWarp<T, head_size, variants> warp{a, dropout, memory, tile,
                                                    static_cast<int>(threadIdx.x) / warp_size * 16};
  warp.load_bounds();
  const KeyRows<T> source(shape, a.k, a.v, tile.batch, key_head_of(shape, tile.head));
  const int keys = keys_seen(shape, tile.first + tile.rows - 1);
  const int first_key =
      variants ? tile_start(first_key_seen(shape, tile.batch, tile.first), forward_keys) : 0;
  if (keys > first_key) {
    const T* const q = head_rows(static_cast<const T*>(a.q), shape.query_length, shape.q_stride,
                                 tile.batch, tile.first, tile.head, shape.head_dim);
    copy_async<attention_threads, T>(
        memory.q, {q, shape.q_stride, tile.rows, static_cast<int>(shape.head_dim)});
    source.copy(first_key, memory.k[0], memory.v[0]);
    copy_async_commit();
  }
  int stage = 0;
  for (int key = first_key; key < keys; key += forward_keys) {
    copy_async_wait<0>();
    __syncthreads();  // the tile has arrived, and all warps are done with the previous one
    if (key + forward_keys < keys) {
      source.copy(key + forward_keys, memory.k[1 - stage], memory.v[1 - stage]);
      copy_async_commit();
    }
    warp.add(stage, key);
    stage = 1 - stage;
  }
  warp.finish();
}

template <class T, bool variants>
void launch_attention_forward_tiles(const AttentionForward& a, Context& context) {
  const AttentionShape& s = a.shape;
  for_head_size<variants>(widest_row(s), [&](auto head_size) {
    launch(context,
           {"attention_forward",
            {s.batch, s.heads, s.query_length, s.key_length, s.head_dim, value_dim_of(s)},
            {reads(a.q, query_bytes(s)), reads(a.k, key_bytes(s)), reads(a.v, value_bytes(s)),
             reads(s.key_mask, mask_bytes(s)), reads(s.document_starts, document_bytes(s)),
             writes(a.out, output_bytes(s)), writes(a.log_sum_exp, statistic_bytes(s))}},
           {attention_blocks(s, s.heads, s.query_length, attention_rows), attention_threads,
            sizeof(AttentionForwardMemory<T, head_size>)},
           attention_forward_kernel<T, head_size, variants>, a, dropout_of(s));
  });
}

template <class T>
void launch_attention_forward(const AttentionForward& a, Context& context) {
  if (has_variants(a.shape)) {
    launch_attention_forward_tiles<T, true>(a, context);
  } else {
    launch_attention_forward_tiles<T, false>(a, context);
  }
}

}  // namespace tessera::kernels::cuda

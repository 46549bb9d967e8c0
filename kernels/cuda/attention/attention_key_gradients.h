// Attention's key and value gradients on tensor cores, for 16-bit types. A block has 64 keys of one
// key head. It processes the queries of the group's heads, and the gradients of their outputs, in
// tiles, with heads and queries in ascending order, so the sums always have the same order. Tiles
// are transposed, with keys as rows, which makes them the left operands of the last products. With
// the names of attention_query_gradients.h:
//   dv = keep(P)^T dout,   dk = scale dS^T q.
// P and dS of a tile are rounded to the 16-bit type as operands.
#pragma once

#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/device/math.h"

namespace tessera::kernels::cuda {

// One lane per query of a tile. More would leave too few registers beside the two gradients.
inline constexpr int gradient_queries = warp_size;

// The first key that each query of a tile sees, with variants.
template <bool variants>
struct QueryBounds {
  int first_key[2][gradient_queries];

  __device__ __forceinline__ int bound(int stage, int query) const {
    return first_key[stage][query];
  }
};
template <>
struct QueryBounds<false> {
  __device__ __forceinline__ int bound(int, int) const { return 0; }
};

template <class T, int head_size, bool variants>
struct KeyGradientMemory : QueryBounds<variants> {
  Tile<T, attention_rows, head_size> k, v;  // at the end they hold the gradients before the store
  Tile<T, gradient_queries, head_size> q[2];
  Tile<T, gradient_queries, head_size> dout[2];
  float log_sum_exp[2][gradient_queries];  // as probability_shift
  float row_product[2][gradient_queries];
};

// The tiles of queries that see any key of the block, head by head.
struct QueryTiles {
  int first_head, first_query, tiles_of_a_head, count;

  __device__ __forceinline__ int head(int index) const {
    return first_head + index / tiles_of_a_head;
  }
  __device__ __forceinline__ int query(int index) const {
    return first_query + index % tiles_of_a_head * gradient_queries;
  }
};
template <bool variants>
__device__ __forceinline__ QueryTiles query_tiles(const AttentionShape& shape,
                                                  const HeadTile& tile) {
  const int group = static_cast<int>(shape.heads / shape.key_heads);
  const int first = first_query_seeing(shape, tile.first) / gradient_queries * gradient_queries;
  const int end = variants ? queries_seeing(shape, tile.batch, tile.first + tile.rows - 1)
                           : static_cast<int>(shape.query_length);
  const int left = end - first;
  const int tiles = left <= 0 ? 0 : (left + gradient_queries - 1) / gradient_queries;
  return {tile.head * group, first, tiles, group * tiles};
}

// A warp's part of a block.
template <class T, int head_size, bool variants>
struct KeyGradientWarp {
  static constexpr int score_tiles = gradient_queries / 8;

  const AttentionShape& shape;
  const AttentionDropout& dropout;
  KeyGradientMemory<T, head_size, variants>& memory;
  HeadTile tile;
  int first_row;      // of the warp in the block
  bool seen[2] = {};  // the lane's keys, according to the mask
  float dk[head_size / 8][4] = {};
  float dv[head_size / 8][4] = {};

  // The lane's first key; its second is 8 below.
  __device__ __forceinline__ int key() const {
    return tile.first + first_row + static_cast<int>(threadIdx.x) % warp_size / 4;
  }
  // The lane's query in column e of sums[n], counted from the first query of the tile.
  __device__ __forceinline__ static int column(int n, int e) {
    return 8 * n + 2 * (static_cast<int>(threadIdx.x) % 4) + e % 2;
  }

  __device__ __forceinline__ void load_mask() {
    const std::uint8_t* const mask = mask_of(shape, tile.batch);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int at = key() + 8 * row;
      seen[row] = at < shape.key_length && (mask == nullptr || mask[at] != 0);
    }
  }

  // Turns scores into probabilities, 0 where a key is not visible.
  __device__ __forceinline__ void make_probabilities(float (&scores)[score_tiles][4], int stage,
                                                     int first_query) const {
    const float scale = (variants ? scale_after_cap(shape) : shape.scale) * log2_of_e;
    const float* const log_sum_exp = memory.log_sum_exp[stage];
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if constexpr (variants) scores[n][e] = capped(shape, scores[n][e]);
        scores[n][e] = flushed_exp2(fmaf(scores[n][e], scale, -log_sum_exp[column(n, e)]));
      }
    }
    if (all_seen(shape, first_query, tile.first, attention_rows) &&
        !(variants && memory.bound(stage, gradient_queries - 1) > tile.first)) {
      return;
    }
    const int offset = shape.causal ? causal_offset(shape) : static_cast<int>(shape.key_length);
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        bool visible = key() + 8 * (e / 2) <= first_query + column(n, e) + offset;
        if constexpr (variants) visible &= key() + 8 * (e / 2) >= memory.bound(stage, column(n, e));
        if (!seen[e / 2] || !visible) scores[n][e] = 0.0f;
      }
    }
  }

  // Bit i: dropout keeps the probability of the warp's key i for the lane's query of the tile.
  __device__ __forceinline__ std::uint32_t make_draws(int head, int first_query) const {
    const int query = first_query + static_cast<int>(threadIdx.x) % warp_size;
    const std::uint64_t draw = first_draw(shape, tile.batch, head, query) +
                               static_cast<std::uint64_t>(tile.first + first_row);
    return kept_bits<16>(shape.key, draw, dropout.threshold);
  }

  // probabilities P and their gradients dP become the operands keep(P) and dS.
  template <bool dropping>
  __device__ __forceinline__ void make_operands(float (&probabilities)[score_tiles][4],
                                                float (&gradients)[score_tiles][4], int stage,
                                                std::uint32_t kept) const {
    const auto kept_scale = static_cast<float>(dropout.kept_scale);
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
#pragma unroll
    for (int n = 0; n < score_tiles; ++n) {
      std::uint32_t bits[2] = {};
      if constexpr (dropping) {
        bits[0] = __shfl_sync(whole_warp, kept, column(n, 0)) >> (lane / 4);
        bits[1] = __shfl_sync(whole_warp, kept, column(n, 1)) >> (lane / 4);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& probability = probabilities[n][e];
        float& gradient = gradients[n][e];
        const bool keep = !dropping || (bits[e % 2] >> (8 * (e / 2)) & 1u) != 0;
        if constexpr (dropping) gradient = keep ? gradient * kept_scale : 0.0f;
        gradient = probability * (gradient - memory.row_product[stage][column(n, e)]);
        if constexpr (variants) {
          gradient *= slope_of_cap(shape, probability, memory.log_sum_exp[stage][column(n, e)]);
        }
        if constexpr (dropping) probability = keep ? probability * kept_scale : 0.0f;
      }
    }
  }

  // Adds the tile of queries from first_query on, which is in stage `stage`.
  __device__ __forceinline__ void add(int stage, int head, int first_query) {
    float probabilities[score_tiles][4] = {};
    multiply_transposed(probabilities, memory.k, first_row, memory.q[stage]);
    make_probabilities(probabilities, stage, first_query);
    float gradients[score_tiles][4] = {};
    multiply_transposed(gradients, memory.v, first_row, memory.dout[stage]);
    if (dropout.threshold == 0) {
      make_operands<false>(probabilities, gradients, stage, 0);
    } else {
      make_operands<true>(probabilities, gradients, stage, make_draws(head, first_query));
    }
    multiply(dv, probabilities, memory.dout[stage]);
    multiply(dk, gradients, memory.q[stage]);
  }

  __device__ __forceinline__ void finish(T* k_gradient, T* v_gradient) {
#pragma unroll
    for (int n = 0; n < head_size / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dk[n][e] *= shape.scale;
    }
    T* const to_k = head_rows(k_gradient, shape.key_length, shape.k_stride, tile.batch, tile.first,
                              tile.head, shape.head_dim);
    T* const to_v = head_rows(v_gradient, shape.key_length, shape.v_stride, tile.batch, tile.first,
                              tile.head, value_dim_of(shape));
    store_rows(memory.k, first_row, dk,
               {to_k, shape.k_stride, tile.rows, static_cast<int>(shape.head_dim)});
    store_rows(memory.v, first_row, dv,
               {to_v, shape.v_stride, tile.rows, static_cast<int>(value_dim_of(shape))});
  }
};

// Begins to copy a tile of queries and their statistics into stage `stage`.
template <class T, int head_size, bool variants>
__device__ __forceinline__ void copy_query_tile(const AttentionBackward& a,
                                                const float* row_products, int batch, int head,
                                                int first, int stage,
                                                KeyGradientMemory<T, head_size, variants>& memory) {
  const AttentionShape& shape = a.shape;
  const int left = static_cast<int>(shape.query_length) - first;
  const T* const q = head_rows(static_cast<const T*>(a.q), shape.query_length, shape.q_stride,
                               batch, first, head, shape.head_dim);
  const T* const dout = head_rows(static_cast<const T*>(a.dout), shape.query_length,
                                  shape.out_stride, batch, first, head, value_dim_of(shape));
  copy_async<attention_threads, T>(memory.q[stage],
                                   {q, shape.q_stride, left, static_cast<int>(shape.head_dim)});
  copy_async<attention_threads, T>(
      memory.dout[stage], {dout, shape.out_stride, left, static_cast<int>(value_dim_of(shape))});
  const int query = static_cast<int>(threadIdx.x);
  if (query < gradient_queries) {
    const bool there = query < left;
    const std::int64_t index = statistic_index(shape, batch, head, first + query);
    memory.log_sum_exp[stage][query] =
        probability_shift(there ? static_cast<const float*>(a.log_sum_exp)[index] : -INFINITY);
    memory.row_product[stage][query] = there ? row_products[index] : 0.0f;
    if constexpr (variants) {
      memory.first_key[stage][query] =
          there ? first_key_seen(shape, batch, first + query) : static_cast<int>(shape.key_length);
    }
  }
}

template <class T, int head_size, bool variants>
__global__ void __launch_bounds__(attention_threads)
    key_gradient_kernel(AttentionBackward a, const float* row_products, AttentionDropout dropout) {
  auto& memory = *dynamic_shared_memory<KeyGradientMemory<T, head_size, variants>>();
  const AttentionShape& shape = a.shape;
  const HeadTile tile = head_tile<attention_rows>(blockIdx.x, shape.key_heads, shape.key_length);
  const QueryTiles passing = query_tiles<variants>(shape, tile);
  KeyGradientWarp<T, head_size, variants> warp{shape, dropout, memory, tile,
                                               static_cast<int>(threadIdx.x) / warp_size * 16};
  warp.load_mask();
  const auto copy = [&](int index, int stage) {
    copy_query_tile(a, row_products, tile.batch, passing.head(index), passing.query(index), stage,
                    memory);
    copy_async_commit();
  };
  if (passing.count > 0) {
    KeyRows<T>(shape, a.k, a.v, tile.batch, tile.head).copy(tile.first, memory.k, memory.v);
    copy(0, 0);
  }
  for (int index = 0; index < passing.count; ++index) {
    const int stage = index % 2;
    copy_async_wait<0>();
    __syncthreads();  // the tile has arrived, and all warps are done with the previous one
    if (index + 1 < passing.count) copy(index + 1, 1 - stage);
    warp.add(stage, passing.head(index), passing.query(index));
  }
  warp.finish(static_cast<T*>(a.dk), static_cast<T*>(a.dv));
}

template <class T, bool variants>
void launch_key_gradients(const AttentionBackward& a, const float* row_products, Context& context) {
  const AttentionShape& s = a.shape;
  for_head_size<variants>(widest_row(s), [&](auto head_size) {
    launch(context,
           {"attention_key_gradients",
            {s.batch, s.key_heads, s.query_length, s.key_length, s.head_dim, value_dim_of(s)},
            {reads(a.q, query_bytes(s)), reads(a.k, key_bytes(s)), reads(a.v, value_bytes(s)),
             reads(a.dout, output_bytes(s)), reads(a.log_sum_exp, statistic_bytes(s)),
             reads(row_products, statistic_bytes(s)), reads(s.key_mask, mask_bytes(s)),
             reads(s.document_starts, document_bytes(s)), writes(a.dk, key_bytes(s)),
             writes(a.dv, value_bytes(s))}},
           {attention_blocks(s, s.key_heads, s.key_length, attention_rows), attention_threads,
            sizeof(KeyGradientMemory<T, head_size, variants>)},
           key_gradient_kernel<T, head_size, variants>, a, row_products, dropout_of(s));
  });
}

}  // namespace tessera::kernels::cuda

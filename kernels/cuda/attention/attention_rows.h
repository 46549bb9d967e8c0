// Tiles of scores with queries as rows, in a warp's registers, for the forward and the backward's
// query gradients. A warp has 16 queries; a lane holds parts of rows lane / 4 and lane / 4 + 8 of
// them (tensor_core_tiles.h has the layout).
#pragma once

#include "kernels/cuda/attention/attention_tiles.h"
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/device/tensor_core_tiles.h"

namespace tessera::kernels::cuda {

// A block of the tensor-core kernels: four warps of 16 rows.
inline constexpr int attention_threads = 128;
inline constexpr int attention_rows = attention_threads / warp_size * 16;

// The keys and values of one key head.
template <class T>
struct KeyRows {
  const T* k;
  const T* v;
  std::int64_t k_stride, v_stride;
  int rows, key_columns, value_columns;

  __device__ __forceinline__ KeyRows(const AttentionShape& shape, const void* keys,
                                     const void* values, int batch, int key_head)
      : k_stride(shape.k_stride),
        v_stride(shape.v_stride),
        rows(static_cast<int>(shape.key_length)),
        key_columns(static_cast<int>(shape.head_dim)),
        value_columns(static_cast<int>(value_dim_of(shape))) {
    k = head_rows(static_cast<const T*>(keys), shape.key_length, k_stride, batch, 0, key_head,
                  shape.head_dim);
    v = head_rows(static_cast<const T*>(values), shape.key_length, v_stride, batch, 0, key_head,
                  value_dim_of(shape));
  }

  // Begins to copy the tile from first_key on.
  template <class KeyTile>
  __device__ __forceinline__ void copy(int first_key, KeyTile& to_k, KeyTile& to_v) const {
    const int left = rows - first_key;
    copy_async<attention_threads, T>(to_k, {k + first_key * k_stride, k_stride, left, key_columns});
    copy_async<attention_threads, T>(to_v,
                                     {v + first_key * v_stride, v_stride, left, value_columns});
  }
};

// One bit for each key of a tile, for a lane's two rows.
template <int keys>
struct RowBits {
  static_assert(keys == 32 || keys == 64);
  std::uint32_t word[2][keys / 32];

  // The bit of element `e` of sums[n], after the shift to the lane's columns.
  __device__ __forceinline__ bool at(int n, int e) const {
    return (word[e / 2][n / 4] >> (8 * (n % 4) + e % 2) & 1u) != 0;
  }
  __device__ __forceinline__ void shift_to_lane() {
    const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int i = 0; i < keys / 32; ++i) {
      word[0][i] >>= column;
      word[1][i] >>= column;
    }
  }
};

// The first keys that queries see: the lane's two, and the last of the block. Without variants it
// is not used.
struct KeyBounds {
  int lane[2], last;

  // `query` is the lane's first.
  template <bool variants>
  static __device__ __forceinline__ KeyBounds of(const AttentionShape& shape, const HeadTile& tile,
                                                 int query) {
    if constexpr (!variants) return {};
    return {
        {first_key_seen(shape, tile.batch, query), first_key_seen(shape, tile.batch, query + 8)},
        first_key_seen(shape, tile.batch, tile.first + tile.rows - 1)};
  }
};

// The keys of a tile from first_key on that are visible to the lane's queries; `query` is the
// lane's first. All lanes of a warp call it.
template <int keys, bool variants>
__device__ __forceinline__ RowBits<keys> seen_keys(const AttentionShape& shape,
                                                   const std::uint8_t* mask, int query,
                                                   int first_key, const KeyBounds& bounds) {
  RowBits<keys> seen;
#pragma unroll
  for (int i = 0; i < keys / 32; ++i) {
    const int key = first_key + 32 * i;
    const std::uint32_t unmasked = unmasked_keys(shape, mask, key);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int visible = query + 8 * row + causal_offset(shape) + 1 - key;
      seen.word[row][i] = unmasked & (shape.causal ? low_bits(visible) : ~0u);
      if constexpr (variants) seen.word[row][i] &= ~low_bits(bounds.lane[row] - key);
    }
  }
  seen.shift_to_lane();
  return seen;
}

// The keys of a tile whose probabilities dropout keeps. tile_draw is the element that the warp's
// first query draws with the tile's first key. All lanes of a warp call it: two lanes make the
// draws of a row, in whole blocks of words, and pass them to the lanes that need them.
template <int keys>
__device__ __forceinline__ RowBits<keys> kept_keys(const AttentionShape& shape,
                                                   std::uint64_t tile_draw,
                                                   std::uint32_t threshold) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  constexpr int half = keys / 2;
  const std::uint64_t draw =
      tile_draw + static_cast<std::uint64_t>(lane / 2 * shape.key_length + lane % 2 * half);
  const std::uint32_t made = kept_bits<half>(shape.key, draw, threshold);
  RowBits<keys> kept;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int maker = 2 * (lane / 4 + 8 * row);
    const std::uint32_t left = __shfl_sync(whole_warp, made, maker);
    const std::uint32_t right = __shfl_sync(whole_warp, made, maker + 1);
    if constexpr (keys == 64) {
      kept.word[row][0] = left;
      kept.word[row][1] = right;
    } else {
      kept.word[row][0] = (left & low_bits(half)) | right << half;
    }
  }
  kept.shift_to_lane();
  return kept;
}

}  // namespace tessera::kernels::cuda

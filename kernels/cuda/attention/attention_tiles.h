// Device code shared by the attention kernels: the rows of a block, the keys that a query sees, and
// the probabilities that dropout keeps.
#pragma once

#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/philox.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {

inline constexpr float log2_of_e = 1.44269504088896340736f;

// A block's tile: `rows` rows (queries, or keys) of one head of one sample, from `first` on.
struct HeadTile {
  int batch, head, first, rows;
};

// The tile of block `index` of attention_blocks(). Blocks start in ascending order.
template <int tile_rows>
__device__ __forceinline__ HeadTile head_tile(unsigned index, std::int64_t heads,
                                              std::int64_t length) {
  const auto tiles = static_cast<unsigned>((length + tile_rows - 1) / tile_rows);
  const unsigned head = index / tiles;
  const int first = static_cast<int>(index % tiles) * tile_rows;
  const int left = static_cast<int>(length) - first;
  return {static_cast<int>(head / static_cast<unsigned>(heads)),
          static_cast<int>(head % static_cast<unsigned>(heads)), first,
          left < tile_rows ? left : tile_rows};
}

// The same from the grid's end. Under a causal mask a head's last queries see the most keys, so the
// grid begins with long tiles and ends with short ones.
template <int tile_rows>
__device__ __forceinline__ HeadTile head_tile_from_last(unsigned index, std::int64_t heads,
                                                        std::int64_t length) {
  return head_tile<tile_rows>(gridDim.x - 1 - index, heads, length);
}

__device__ __forceinline__ int key_head_of(const AttentionShape& shape, int head) {
  return head / static_cast<int>(shape.heads / shape.key_heads);
}

// The beginning of a head's rows. `length` and `stride` are the tensor's.
template <class T>
__device__ __forceinline__ T* head_rows(T* base, std::int64_t length, std::int64_t stride,
                                        int batch, int row, int head, std::int64_t head_dim) {
  return base + (batch * length + row) * stride + head * head_dim;
}

// The index into log_sum_exp and the row products.
__device__ __forceinline__ std::int64_t statistic_index(const AttentionShape& shape, int batch,
                                                        int head, int query) {
  return (batch * shape.heads + head) * shape.query_length + query;
}

// A row's probabilities are 2^(score * log2(e) - shift), with the shift from its log_sum_exp. A row
// without visible keys gives e^(score - infinity) = 0 for every key.
__device__ __forceinline__ float probability_shift(float log_sum_exp) {
  return log_sum_exp == -INFINITY ? INFINITY : log_sum_exp * log2_of_e;
}

// The number of keys beyond its own number that a causal query sees.
__device__ __forceinline__ int causal_offset(const AttentionShape& shape) {
  return static_cast<int>(shape.key_length - shape.query_length);
}

// The keys that any of the queries up to `last_query` sees: [0, keys_seen).
__device__ __forceinline__ int keys_seen(const AttentionShape& shape, int last_query) {
  const int keys = static_cast<int>(shape.key_length);
  if (!shape.causal) return keys;
  const int seen = last_query + 1 + causal_offset(shape);
  return seen < 0 ? 0 : seen < keys ? seen : keys;
}

// The first query that sees any key from first_key on; query_length or more if none does.
__device__ __forceinline__ int first_query_seeing(const AttentionShape& shape, int first_key) {
  if (!shape.causal) return 0;
  const int query = first_key - causal_offset(shape);
  return query < 0 ? 0 : query;
}

// Where the tiles of keys begin of which the first holds `first_key`.
__host__ __device__ __forceinline__ constexpr int tile_start(int first_key, int keys) {
  return first_key / keys * keys;
}

__device__ __forceinline__ const std::uint8_t* mask_of(const AttentionShape& shape, int batch) {
  return shape.key_mask == nullptr ? nullptr : shape.key_mask + batch * shape.key_length;
}

// True if every query from first_query on sees all of the keys [first_key, first_key + keys).
__device__ __forceinline__ bool all_seen(const AttentionShape& shape, int first_query,
                                         int first_key, int keys) {
  return shape.key_mask == nullptr && first_key + keys <= shape.key_length &&
         (!shape.causal || first_key + keys <= first_query + 1 + causal_offset(shape));
}

// The lowest `count` bits, all for 32 or more, none for 0 or less.
__device__ __forceinline__ std::uint32_t low_bits(int count) {
  if (count >= 32) return ~0u;
  return count <= 0 ? 0u : (1u << count) - 1u;
}

// Bit i: key first_key + i exists and is not masked. All lanes of a warp call it.
__device__ __forceinline__ std::uint32_t unmasked_keys(const AttentionShape& shape,
                                                       const std::uint8_t* mask, int first_key) {
  const int key = first_key + static_cast<int>(threadIdx.x) % warp_size;
  const bool seen = key < shape.key_length && (mask == nullptr || mask[key] != 0);
  return __ballot_sync(whole_warp, seen);
}

// The element that (b, h, i, j = 0) draws.
__device__ __forceinline__ std::uint64_t first_draw(const AttentionShape& shape, int batch,
                                                    int head, std::int64_t query) {
  const std::int64_t row =
      ((shape.first_sample + batch) * shape.heads + head) * shape.query_length + query;
  return static_cast<std::uint64_t>(row * shape.key_length);
}

// Bit i, i < count: the draw of element first + i keeps. The bits from `count` on are undefined.
template <int count>
__device__ __forceinline__ std::uint32_t kept_bits(RandomKey key, std::uint64_t first,
                                                   std::uint32_t threshold) {
  static_assert(count % philox_words == 0 && count <= 32);
  const int skipped = static_cast<int>(first % 4);
  const int blocks = skipped == 0 ? count / 4 : count / 4 + 1;
  std::uint64_t bits = 0;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    const PhiloxBlock words = philox_block(key, first / 4 + static_cast<std::uint64_t>(block));
    std::uint32_t kept = 0;
#pragma unroll
    for (int word = 0; word < philox_words; ++word) {
      kept |= (words.word[word] >= threshold ? 1u : 0u) << word;
    }
    bits |= static_cast<std::uint64_t>(kept) << (4 * block);
  }
  return static_cast<std::uint32_t>(bits >> skipped);
}

// The wider of a head's rows of keys and of values. Tiles have one width for both: rows that are
// shorter end with zeros.
inline std::int64_t widest_row(const AttentionShape& shape) {
  const std::int64_t values = value_dim_of(shape);
  return shape.head_dim > values ? shape.head_dim : values;
}

// Calls body(std::integral_constant<int, size>) for the tile width that holds a head: 32, 64, 96 or
// 128. The kernels with variants have only 64 and 128, which halves their number.
template <bool variants, class Body>
void for_head_size(std::int64_t head_dim, Body&& body) {
  if constexpr (!variants) {
    if (head_dim <= 32) return body(std::integral_constant<int, 32>{});
    if (head_dim > 64 && head_dim <= 96) return body(std::integral_constant<int, 96>{});
  }
  if (head_dim <= 64) return body(std::integral_constant<int, 64>{});
  return body(std::integral_constant<int, 128>{});
}

}  // namespace tessera::kernels::cuda

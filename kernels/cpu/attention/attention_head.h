// What attention's forward and backward share: where a head's rows lie, the types that its tiles
// are computed in, and the products between tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/attention.h"
#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/element.h"

namespace tessera::kernels::cpu {

// Queries whose scores are worked on at once. A causal tile on the diagonal computes half of its
// products for nothing, so that fewer rows waste less; fewer than these make the products slow.
inline constexpr std::int64_t kQueryRows = 64;

// Rows of one head, `stride` elements apart.
struct HeadRows {
  const void* data;
  std::int64_t stride;
};

// The sizes and types of an attention call, checked.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionShape& shape, const char* kernel);

  const AttentionShape& shape;
  std::int64_t group;  // query heads to a key head
  DType
      operand;  // of what the tiles' products multiply: the tensors' type, or float32 in its place
  DType compute;  // of scores, statistics and sums

  [[nodiscard]] HeadRows queries(const void* base, std::int64_t stride, std::int64_t batch,
                                 std::int64_t head) const;
  [[nodiscard]] HeadRows keys(const void* base, std::int64_t stride, std::int64_t batch,
                              std::int64_t key_head) const;

  // Rows from `row` on of the head after this one, in each of the tensors, as far as there are any.
  struct Tensor {
    const void* base;
    std::int64_t row_stride;
    bool of_keys;
  };
  [[nodiscard]] UpcomingRows rows_of_next_head(std::initializer_list<Tensor> tensors,
                                               std::int64_t batch, std::int64_t head,
                                               std::int64_t row, std::int64_t rows) const;

  // The same rows in the operands' type: in place, or widened into `buffer`.
  [[nodiscard]] HeadRows widened(HeadRows rows, std::int64_t count, ScratchBuffer& buffer) const;

  // Keys that any of the queries [first, first + rows) sees: [0, keys_seen).
  [[nodiscard]] std::int64_t keys_seen(std::int64_t first_query, std::int64_t rows) const;

  // The tile of `rows` queries from first_query on and `columns` keys from first_key on.
  [[nodiscard]] AttentionTile tile(std::int64_t batch, std::int64_t head, std::int64_t first_query,
                                   std::int64_t rows, std::int64_t first_key, std::int64_t columns,
                                   const void* bias) const;

  // 0 or -inf for each key of a sample, or null without a mask.
  [[nodiscard]] const void* key_bias(std::int64_t batch, ScratchBuffer& buffer) const;

  // Sums of the compute type, dense, into rows of a tensor.
  void write_rows(const void* sums, void* base, std::int64_t offset, std::int64_t stride,
                  std::int64_t rows) const;

 private:
  std::uint32_t dropout_threshold_;
};

// c[m, n] (+)= op(a) * op(b) of operands, c of the compute type; each given by its rows as stored.
struct TileProduct {
  HeadRows a, b;
  void* c;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false;
};
void multiply(const AttentionPlan& plan, const TileProduct& product);

}  // namespace tessera::kernels::cpu

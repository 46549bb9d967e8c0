// Code shared by attention's forward and backward: the memory of a head's rows, the types of its
// tiles, and the products between tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "kernels/attention.h"
#include "kernels/cpu/attention/attention_tiles.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/element.h"

namespace tessera::kernels::cpu {

// Queries whose scores are computed together. Half of the products of a causal tile on the diagonal
// are wasted, so fewer rows waste less; with fewer rows than this the products become slow.
inline constexpr std::int64_t kQueryRows = 64;

// Rows of one head, `stride` elements apart.
struct HeadRows {
  const void* data;
  std::int64_t stride;
  std::int64_t width = 0;  // elements of a row; products have their own sizes
};

// Queries whose scores are computed together.
struct QueryBlock {
  std::int64_t batch, first, rows;
  // All keys that any of the queries sees are in [first_key, last_key).
  std::int64_t first_key = 0, last_key = 0;
  // The first key that each query sees, in ascending order; only with a window or documents.
  bool bounded = false;
  std::array<std::int64_t, kQueryRows> bounds{};
};

// The sizes and types of an attention call, checked.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionShape& shape, const char* kernel);

  const AttentionShape& shape;
  std::int64_t value_dim;
  std::int64_t group;  // query heads per key head
  DType operand;  // of the operands of the tiles' products: the tensors' type, or float32 instead
  DType compute;  // of scores, statistics and sums

  // Rows of `width` elements: of head_dim for q, k and their gradients, else of value_dim.
  [[nodiscard]] HeadRows queries(const void* base, std::int64_t stride, std::int64_t batch,
                                 std::int64_t head, std::int64_t width) const;
  [[nodiscard]] HeadRows keys(const void* base, std::int64_t stride, std::int64_t batch,
                              std::int64_t key_head, std::int64_t width) const;

  // A tensor of which rows_of_next_head() fetches the rows from `row` on, if there is a next head.
  struct Tensor {
    const void* base;
    std::int64_t row_stride, width;
    bool of_keys;
  };
  [[nodiscard]] UpcomingRows rows_of_next_head(std::initializer_list<Tensor> tensors,
                                               std::int64_t batch, std::int64_t head,
                                               std::int64_t row, std::int64_t rows) const;

  // The same rows in the operands' type: in place, or widened into `buffer`.
  [[nodiscard]] HeadRows widened(HeadRows rows, std::int64_t count, ScratchBuffer& buffer) const;

  // The queries, with the keys that they see.
  [[nodiscard]] QueryBlock block(std::int64_t batch, std::int64_t first_query,
                                 std::int64_t rows) const;

  // The tile of the queries and `columns` keys from first_key on.
  [[nodiscard]] AttentionTile tile(const QueryBlock& queries, std::int64_t head,
                                   std::int64_t first_key, std::int64_t columns,
                                   const void* bias) const;

  // 0 or -inf for each key of a sample, or null without a mask.
  [[nodiscard]] const void* key_bias(std::int64_t batch, ScratchBuffer& buffer) const;

  // Writes dense sums of the compute type, of `width` elements, into rows of a tensor.
  void write_rows(const void* sums, void* base, std::int64_t offset, std::int64_t stride,
                  std::int64_t rows, std::int64_t width) const;

 private:
  [[nodiscard]] std::int64_t first_key_seen(std::int64_t batch, std::int64_t query) const;

  std::uint32_t dropout_threshold_;
};

// c[m, n] (+)= op(a) * op(b) of operands; c has the compute type. The rows are as stored.
struct TileProduct {
  HeadRows a, b;
  void* c;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false;
};
void multiply(const AttentionPlan& plan, const TileProduct& product);

}  // namespace tessera::kernels::cpu

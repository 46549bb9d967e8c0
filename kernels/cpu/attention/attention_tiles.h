// Work on a tile of attention scores between its matrix products: the softmax and its gradient,
// vectorised. Scores and statistics are float (double for float64); the operands of the next
// product have the tile's type.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/random.h"

namespace tessera::kernels::cpu {

// The largest number of columns of a tile.
inline constexpr std::int64_t kMostTileColumns = 512;

// Rows of tensors that the next head will read, one for each row of the tile. They are fetched into
// the cache during the arithmetic: a head's rows are far apart, and the processor does not prefetch
// them.
struct UpcomingRows {
  static constexpr int kMostTensors = 5;
  std::array<const std::byte*, kMostTensors> first{};
  std::array<std::int64_t, kMostTensors> row_bytes{};   // between rows
  std::array<std::int64_t, kMostTensors> head_bytes{};  // of a head in a row
  int tensors = 0;
};

// A tile holds the scores of some rows (queries) and columns (keys) of one head, with `columns`
// elements per row.
struct AttentionTile {
  std::int64_t rows, columns;
  // The first row sees this many columns of the tile (none if negative), each later row one more.
  // In a tile that is not causal every row sees all columns.
  std::int64_t visible = 0;
  bool causal = false;
  // The first key that each row sees, or null; the tile's first column is key first_key.
  const std::int64_t* bounds = nullptr;
  std::int64_t first_key = 0;
  double scale = 1;
  double soft_cap = 0;  // a scaled score s becomes soft_cap * tanh(s / soft_cap); 0 for no cap
  const void* bias = nullptr;  // [columns] 0 or -inf, of the scores' type; or null
  // Added to the capped score of row r, column c: element r * pair_bias_stride + c, of the scores'
  // type; or null.
  const void* pair_bias = nullptr;
  std::int64_t pair_bias_stride = 0;
  // Dropout of the probabilities: the draw of row r, column c is element first_draw + r *
  // draw_stride + c.
  std::uint32_t dropout_threshold = 0;  // draws below it drop; 0 for no dropout
  double kept_scale = 1;                // 1 / (1 - dropout)
  RandomKey key{};
  std::int64_t first_draw = 0, draw_stride = 0;
  UpcomingRows upcoming{};
};

// The running softmax of rows whose keys come tile by tile; arrays of one element per row.
struct RowStatistics {
  void* maximum;  // largest scaled score so far, -inf before the first
  void* sum;      // of e^(score - maximum)
  void* factor;   // factor for the sums over earlier tiles
};

// probabilities = e^(score - maximum), zero where dropout drops them or where a row does not see
// the key. The caller must apply kept_scale when it divides by the sum.
void softmax_tile(const AttentionTile& tile, DType operand, const void* scores,
                  const RowStatistics& rows, void* probabilities);

// The backward of one tile. `scores` and `gradients` (of the dropped probabilities) become the
// dropped and scaled probabilities and the gradient of the unscaled scores. log_sum_exp is +inf for
// a row without visible keys; delta is the product of a row's output with its gradient.
void softmax_gradient_tile(const AttentionTile& tile, DType operand, const void* scores,
                           const void* gradients, const void* log_sum_exp, const void* delta,
                           void* probabilities, void* score_gradients);

// Adds the gradients of the biased scores to `sums`, rows of pair_bias_stride elements of the
// scores' type. The other arguments are those of softmax_gradient_tile().
void add_bias_gradient_tile(const AttentionTile& tile, DType operand, const void* scores,
                            const void* gradients, const void* log_sum_exp, const void* delta,
                            void* sums);

// Scales row r of `values` [rows, columns] by factor[r]; both have the scores' type.
void scale_rows(DType operand, void* values, const void* factor, std::int64_t rows,
                std::int64_t columns);

// delta[r] = sum over columns of out * gradient, which have type `dtype`; delta has its compute
// type.
void row_products(DType dtype, const void* out, std::int64_t out_stride, const void* gradient,
                  std::int64_t gradient_stride, void* delta, std::int64_t rows,
                  std::int64_t columns);

}  // namespace tessera::kernels::cpu

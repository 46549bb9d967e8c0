// Shared by the two ways to compute a language model's head and its loss: in tiles of the logits
// (tiles.cpp), and in rows of them (rows.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/tensor.h"

namespace tessera::ops {

// x [rows, in] and weight [vocabulary, in] of `dtype`; logits and sums are `wide`: fp32, or fp64
// for fp64.
struct Head {
  std::int64_t rows, in, vocabulary, ignore;
  DType dtype, wide;
  Device device;

  // The address of row `row` in a matrix with `width` columns.
  static void* at(const Tensor& tensor, std::int64_t row, std::int64_t width) {
    return tensor.raw_data() + static_cast<std::size_t>(row * width) * size_of(tensor.dtype());
  }
};

// The results of a forward: a number of each row, the mean of the losses that count, and one
// divided by their number.
struct HeadLoss {
  Tensor of_rows, log_sum_exp;  // [rows], wide
  Tensor mean;                  // [], wide
  Tensor inverse_count;         // [], fp64

  explicit HeadLoss(const Head& h)
      : of_rows(Tensor::empty({h.rows}, h.wide, h.device)),
        log_sum_exp(Tensor::empty({h.rows}, h.wide, h.device)) {}
  void take_mean(const Head& h, const Tensor& targets);
};

// A block of the logits: rows [row, row + rows) and columns [column, column + columns).
struct LogitsBlock {
  std::int64_t row, rows, column, columns;
  std::int64_t stride;  // elements between rows as stored
};
// Rows of logits are aligned to 32 bytes.
constexpr std::int64_t aligned_stride(std::int64_t columns) {
  constexpr std::int64_t multiple = 16;
  return (columns + multiple - 1) / multiple * multiple;
}

void compute_logits(const Head& h, const Tensor& x, const Tensor& weight, const LogitsBlock& block,
                    const Tensor& logits);
// The losses of a block's rows. `sum` [rows] is needed if the block has a part of the columns.
void compute_losses(const Head& h, const LogitsBlock& block, const Tensor& logits,
                    const Tensor& targets, const HeadLoss& into, const Tensor& sum = {});
// The gradients of the logits of a block, times `dloss` [] of h.wide and `inverse_count` [] of
// fp64.
void compute_logit_gradients(const Head& h, const LogitsBlock& block, const Tensor& logits,
                             const Tensor& targets, const Tensor& log_sum_exp, const Tensor& dloss,
                             const Tensor& inverse_count, const Tensor& dlogits);

// Calls body(first row, rows) for each chunk. For zero rows it calls it once: a sum over them is
// zero.
template <class Body>
void for_chunks(std::int64_t rows, std::int64_t chunk, Body&& body) {
  std::int64_t row = 0;
  do {
    body(row, std::min(chunk, rows - row));
    row += chunk;
  } while (row < rows);
}

// Both ways return the mean loss, [], with its node on the tape. chunk_rows:
// LinearCrossEntropyOptions.
Tensor head_in_tiles(const Head& h, const Tensor& x, const Tensor& weight, const Tensor& targets,
                     std::int64_t chunk_rows);
Tensor head_in_rows(const Head& h, const Tensor& x, const Tensor& weight, const Tensor& targets,
                    std::int64_t chunk_rows);

}  // namespace tessera::ops

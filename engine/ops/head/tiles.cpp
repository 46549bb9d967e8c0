// The head and its loss in tiles of the logits that stay in a processor's cache: a chunk of rows by
// a block of the vocabulary.
//
// Between forward and backward only the logits' log-sum-exp is kept, one number per row. The
// backward computes each tile of logits again, turns it into the gradient in place, and computes
// both products of it before the next tile. These were the alternatives:
//
//   products     memory beside x and its gradient                    GPT-2 124M, 1,024 rows
//   3, whole     the logits, which their gradient overwrites          196 MiB (bf16 98)
//   3, in rows   the weight's gradient, in fp32, forward to backward  147 MiB (bf16 147)
//   4, in tiles  a tile                                               8 MiB (bf16 12)
//
// The first two need six passes over 196 MiB of memory. In the third, the weight's gradient is
// written to its final buffer, one block of rows at a time and rounded once; its fourth product
// takes less time than those passes on a processor. On a GPU it takes more (rows.cpp).
//
// Bits depend on the blocks, never on the chunk. Rows of a product do not depend on the number of
// rows requested (kernels/matmul.h). The parts of a row's log-sum-exp and of its gradient are added
// vocabulary block by vocabulary block, and those of the weight's gradient row block by row block.
#include "engine/ops/head/head.h"

namespace tessera::ops {
namespace {

constexpr std::int64_t block_columns = 2048;
constexpr std::int64_t block_rows = 1024;
// A part of the last-level cache.
constexpr std::int64_t tile_bytes = std::int64_t{8} << 20;

// A head, and its rows of a tile: whole blocks.
struct TiledHead : Head {
  std::int64_t chunk;

  TiledHead(const Head& h, std::int64_t chunk_rows) : Head(h), chunk(chunk_rows) {
    if (chunk == 0) {
      const std::int64_t row_bytes = aligned_stride(std::min(block_columns, vocabulary)) *
                                     static_cast<std::int64_t>(size_of(wide));
      chunk = std::max<std::int64_t>(1, tile_bytes / row_bytes / block_rows) * block_rows;
    }
    chunk = (chunk + block_rows - 1) / block_rows * block_rows;
  }
  [[nodiscard]] Tensor tile(DType type) const {
    return Tensor::empty(
        {std::min(chunk, rows), aligned_stride(std::min(block_columns, vocabulary))}, type, device);
  }
  [[nodiscard]] LogitsBlock block(std::int64_t row, std::int64_t count, std::int64_t column) const {
    const std::int64_t columns = std::min(block_columns, vocabulary - column);
    return {row, count, column, columns, aligned_stride(columns)};
  }
  [[nodiscard]] bool one_block_of_columns() const { return vocabulary <= block_columns; }
  [[nodiscard]] bool one_block_of_rows() const { return rows <= block_rows; }
};

HeadLoss losses_of_rows(const TiledHead& h, const Tensor& x, const Tensor& weight,
                        const Tensor& targets) {
  HeadLoss result(h);
  const Tensor sum = Tensor::empty({h.rows}, h.wide, h.device);
  const Tensor logits = h.tile(h.wide);
  for (std::int64_t column = 0; column < h.vocabulary; column += block_columns) {
    for_chunks(h.rows, h.chunk, [&](std::int64_t row, std::int64_t rows) {
      const LogitsBlock block = h.block(row, rows, column);
      compute_logits(h, x, weight, block, logits);
      compute_losses(h, block, logits, targets, result, sum);
    });
  }
  result.take_mean(h, targets);
  return result;
}

// Where a gradient is summed: in the slot itself, or in separate memory if the slot has a 16-bit
// type and gets more than one product. finish() then adds the sums to the slot.
struct GradientSums {
  autograd::GradientSink::Slot slot;
  Tensor sums;
  bool accumulate = false;  // for the first product

  GradientSums() = default;
  GradientSums(const autograd::GradientSink::Slot& into, bool one_product, const Shape& shape,
               const Head& h)
      : slot(into), sums(into.tensor), accumulate(into.accumulate) {
    if (one_product || into.tensor.dtype() == h.wide) return;
    sums = Tensor::empty(shape, h.wide, h.device);
    accumulate = false;
  }
  [[nodiscard]] bool wanted() const { return sums.defined(); }
  [[nodiscard]] bool apart() const { return sums.impl() != slot.tensor.impl(); }

  // Adds the first rows of the sums to rows [row, row + rows) of the slot, of `width` columns.
  void finish(std::int64_t row, std::int64_t rows, std::int64_t width) const {
    if (!wanted() || !apart()) return;
    TESSERA_LAUNCH(sums.device(), cast,
                   {sums.data(), Head::at(slot.tensor, row, width), rows * width, sums.dtype(),
                    slot.tensor.dtype(), 1.0f, slot.accumulate});
  }
};

// The products of one tile's gradient.
struct TileGradient {
  const TiledHead& h;
  const Tensor& dlogits;
  LogitsBlock block;

  void to_x(const Tensor& weight, const GradientSums& dx) const {
    if (!dx.wanted()) return;
    TESSERA_LAUNCH(h.device, matmul,
                   {.a = dlogits.data(),
                    .b = Head::at(weight, block.column, h.in),
                    .c = Head::at(dx.sums, block.row, h.in),
                    .m = block.rows,
                    .n = h.in,
                    .k = block.columns,
                    .lda = block.stride,
                    .ldb = h.in,
                    .ldc = h.in,
                    .accumulate = dx.accumulate || block.column > 0,
                    .dtype = h.dtype,
                    .out_dtype = dx.sums.dtype()});
  }

  // Adds one block of rows after another, for every chunk size.
  void to_weight(const Tensor& x, const GradientSums& dweight) const {
    if (!dweight.wanted()) return;
    for_chunks(block.rows, block_rows, [&](std::int64_t first, std::int64_t depth) {
      TESSERA_LAUNCH(h.device, matmul,
                     {.a = Head::at(dlogits, first, block.stride),
                      .b = Head::at(x, block.row + first, h.in),
                      .c = Head::at(dweight.sums, dweight.apart() ? 0 : block.column, h.in),
                      .m = block.columns,
                      .n = h.in,
                      .k = depth,
                      .lda = block.stride,
                      .ldb = h.in,
                      .ldc = h.in,
                      .transpose_a = true,
                      .accumulate = dweight.accumulate || block.row + first > 0,
                      .dtype = h.dtype,
                      .out_dtype = dweight.sums.dtype()});
    });
  }
};

struct SavedHead {
  autograd::SavedTensor x;
  autograd::SavedValue weight, targets;
  Tensor log_sum_exp, inverse_count;
};

void gradients(const TiledHead& h, const SavedHead& saved, const Tensor& dloss,
               autograd::GradientSink& sink) {
  const Tensor x = saved.x.get();
  const Tensor& weight = saved.weight.get();
  const Tensor& targets = saved.targets.get();
  GradientSums dx, dweight;
  if (sink.wants(0)) dx = {sink.slot(0), h.one_block_of_columns(), {h.rows, h.in}, h};
  if (sink.wants(1)) {
    dweight = {
        sink.wide_slot(1), h.one_block_of_rows(), {std::min(block_columns, h.vocabulary), h.in}, h};
  }
  const Tensor logits = h.tile(h.wide);
  const Tensor dlogits = h.dtype == h.wide ? logits : h.tile(h.dtype);
  for (std::int64_t column = 0; column < h.vocabulary; column += block_columns) {
    const std::int64_t columns = h.block(0, 0, column).columns;
    for_chunks(h.rows, h.chunk, [&](std::int64_t row, std::int64_t rows) {
      const TileGradient tile{h, dlogits, h.block(row, rows, column)};
      compute_logits(h, x, weight, tile.block, logits);
      compute_logit_gradients(h, tile.block, logits, targets, saved.log_sum_exp, dloss,
                              saved.inverse_count, dlogits);
      tile.to_x(weight, dx);
      tile.to_weight(x, dweight);
    });
    dweight.finish(column, columns, h.in);
  }
  dx.finish(0, h.rows, h.in);
}

}  // namespace

Tensor head_in_tiles(const Head& head, const Tensor& x, const Tensor& weight, const Tensor& targets,
                     std::int64_t chunk_rows) {
  const TiledHead h(head, chunk_rows);
  const HeadLoss loss = losses_of_rows(h, x, weight, targets);
  autograd::record(
      Op::linear_cross_entropy, {x, weight}, {loss.mean},
      [h, saved = SavedHead{autograd::SavedTensor(x), autograd::SavedValue(weight),
                            autograd::SavedValue(targets), loss.log_sum_exp, loss.inverse_count}](
          std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        gradients(h, saved, dout[0], sink);
      });
  return loss.mean;
}

}  // namespace tessera::ops

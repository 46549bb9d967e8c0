// A language model's head and its loss, computed in tiles of the logits that stay in a cache: a
// chunk of rows by a block of the vocabulary.
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
// In the second, the forward computes the gradients (rows are enough for the log-sum-exp), before
// it knows the factor of the loss, and sums the weight's gradient in separate memory: with 16-bit
// gradients the final buffer could not hold the sums. In the third, the weight's gradient is
// written to its final buffer, one block of rows at a time and rounded once. It needs a fourth
// product, but avoids six passes over 196 MiB of memory that whole logits need.
//
// Bits depend on the blocks, never on the chunk. Rows of a product do not depend on the number of
// rows requested (kernels/matmul.h). The parts of a row's log-sum-exp and of its gradient are added
// vocabulary block by vocabulary block, and those of the weight's gradient row block by row block.
#include <algorithm>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"

namespace tessera {
namespace {

constexpr std::int64_t block_columns = 2048;
// The size of a tile of logits, a part of the last-level cache, and the rows of a block. 24 MiB are
// half the L2 cache of an H100: its four passes over a tile need no memory traffic. Such a tile has
// 3072 rows, and 384 tiles of 128 x 128 for 132 multiprocessors.
struct Tiling {
  std::int64_t bytes, block_rows;
};
constexpr Tiling tiling_on_cpu{std::int64_t{8} << 20, 1024};
constexpr Tiling tiling_on_gpu{std::int64_t{24} << 20, 3072};
// Rows of a tile are aligned to 32 bytes.
constexpr std::int64_t row_multiple = 16;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// x [rows, in], weight [vocabulary, in], and their tiling.
struct Head {
  std::int64_t rows, in, vocabulary, ignore;
  std::int64_t block_rows;
  std::int64_t chunk;  // rows of a tile
  DType dtype;         // of x and the weight
  DType wide;          // of logits and sums: fp32, or fp64
  Device device;

  [[nodiscard]] std::int64_t columns(std::int64_t first) const {
    return std::min(block_columns, vocabulary - first);
  }
  [[nodiscard]] Tensor tile(DType type) const {
    const std::int64_t stride = round_up(std::min(block_columns, vocabulary), row_multiple);
    return Tensor::empty({std::min(chunk, rows), stride}, type, device);
  }
  [[nodiscard]] bool one_block_of_columns() const { return vocabulary <= block_columns; }
  [[nodiscard]] bool one_block_of_rows() const { return rows <= block_rows; }

  // The address of row `row` in a matrix with `width` columns.
  static void* at(const Tensor& tensor, std::int64_t row, std::int64_t width) {
    return tensor.raw_data() + static_cast<std::size_t>(row * width) * size_of(tensor.dtype());
  }
};

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

void logits_of_tile(const Head& h, const Tensor& x, const Tensor& weight, std::int64_t row,
                    std::int64_t rows, std::int64_t column, const Tensor& logits) {
  const std::int64_t columns = h.columns(column);
  TESSERA_LAUNCH(h.device, matmul,
                 {.a = Head::at(x, row, h.in),
                  .b = Head::at(weight, column, h.in),
                  .c = logits.raw_data(),
                  .m = rows,
                  .n = columns,
                  .k = h.in,
                  .lda = h.in,
                  .ldb = h.in,
                  .ldc = round_up(columns, row_multiple),
                  .transpose_b = true,
                  .dtype = h.dtype,
                  .out_dtype = h.wide});
}

struct RowStatistics {
  Tensor loss, log_sum_exp;
};

RowStatistics losses_of_rows(const Head& h, const Tensor& x, const Tensor& weight,
                             const Tensor& targets) {
  RowStatistics result{Tensor::empty({h.rows}, h.wide, h.device),
                       Tensor::empty({h.rows}, h.wide, h.device)};
  const Tensor sum = Tensor::empty({h.rows}, h.wide, h.device);
  const Tensor logits = h.tile(h.wide);
  for (std::int64_t column = 0; column < h.vocabulary; column += block_columns) {
    for_chunks(h.rows, h.chunk, [&](std::int64_t row, std::int64_t rows) {
      logits_of_tile(h, x, weight, row, rows, column, logits);
      TESSERA_LAUNCH(h.device, cross_entropy_forward,
                     {.logits = logits.raw_data(),
                      .targets = Head::at(targets, row, 1),
                      .target_dtype = targets.dtype(),
                      .loss = Head::at(result.loss, row, 1),
                      .log_sum_exp = Head::at(result.log_sum_exp, row, 1),
                      .rows = rows,
                      .vocabulary = h.vocabulary,
                      .stride = round_up(h.columns(column), row_multiple),
                      .ignore = h.ignore,
                      .dtype = h.wide,
                      .first = column,
                      .columns = h.columns(column),
                      .sum = Head::at(sum, row, 1)});
    });
  }
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
  const Head& h;
  const Tensor& dlogits;
  std::int64_t row, rows, column;

  [[nodiscard]] std::int64_t columns() const { return h.columns(column); }
  [[nodiscard]] std::int64_t stride() const { return round_up(columns(), row_multiple); }

  void to_x(const Tensor& weight, const GradientSums& dx) const {
    if (!dx.wanted()) return;
    TESSERA_LAUNCH(h.device, matmul,
                   {.a = dlogits.data(),
                    .b = Head::at(weight, column, h.in),
                    .c = Head::at(dx.sums, row, h.in),
                    .m = rows,
                    .n = h.in,
                    .k = columns(),
                    .lda = stride(),
                    .ldb = h.in,
                    .ldc = h.in,
                    .accumulate = dx.accumulate || column > 0,
                    .dtype = h.dtype,
                    .out_dtype = dx.sums.dtype()});
  }

  // Adds one block of rows after another, for every chunk size.
  void to_weight(const Tensor& x, const GradientSums& dweight) const {
    if (!dweight.wanted()) return;
    for_chunks(rows, h.block_rows, [&](std::int64_t block, std::int64_t depth) {
      TESSERA_LAUNCH(h.device, matmul,
                     {.a = Head::at(dlogits, block, stride()),
                      .b = Head::at(x, row + block, h.in),
                      .c = Head::at(dweight.sums, dweight.apart() ? 0 : column, h.in),
                      .m = columns(),
                      .n = h.in,
                      .k = depth,
                      .lda = stride(),
                      .ldb = h.in,
                      .ldc = h.in,
                      .transpose_a = true,
                      .accumulate = dweight.accumulate || row + block > 0,
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

void gradients(const Head& h, const SavedHead& saved, const Tensor& dloss,
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
    for_chunks(h.rows, h.chunk, [&](std::int64_t row, std::int64_t rows) {
      const TileGradient tile{h, dlogits, row, rows, column};
      logits_of_tile(h, x, weight, row, rows, column, logits);
      TESSERA_LAUNCH(h.device, cross_entropy_backward,
                     {.logits = logits.raw_data(),
                      .targets = Head::at(targets, row, 1),
                      .target_dtype = targets.dtype(),
                      .log_sum_exp = Head::at(saved.log_sum_exp, row, 1),
                      .dloss = dloss.data(),
                      .inverse_count = saved.inverse_count.data_as<double>(),
                      .dlogits = dlogits.raw_data(),
                      .rows = rows,
                      .vocabulary = h.vocabulary,
                      .stride = tile.stride(),
                      .ignore = h.ignore,
                      .dtype = h.wide,
                      .first = column,
                      .columns = tile.columns(),
                      .out_dtype = h.dtype});
      tile.to_x(weight, dx);
      tile.to_weight(x, dweight);
    });
    dweight.finish(column, h.columns(column), h.in);
  }
  dx.finish(0, h.rows, h.in);
}

Head describe(const Tensor& x, const Tensor& weight, const Tensor& targets,
              const LinearCrossEntropyOptions& options) {
  TESSERA_REQUIRE(targets.dtype() == int32 || targets.dtype() == int64,
                  "linear_cross_entropy: targets of {}; int32 or int64 required",
                  name_of(targets.dtype()));
  TESSERA_REQUIRE(weight.dimensions() == 2 && x.dimensions() >= 1 && x.size(-1) > 0 &&
                      x.size(-1) == weight.size(1) && weight.size(0) > 0 &&
                      targets.elements() == x.elements() / x.size(-1),
                  "linear_cross_entropy: x of shape {}, weight of shape {}, targets of shape {}",
                  x.shape().to_string(), weight.shape().to_string(), targets.shape().to_string());
  TESSERA_REQUIRE(options.chunk_rows >= 0, "linear_cross_entropy: chunks of {} rows",
                  options.chunk_rows);
  ops::require_same_device("linear_cross_entropy", x, weight, targets);
  const Tiling& tiling =
      x.device().stands_for() == DeviceType::cuda ? tiling_on_gpu : tiling_on_cpu;
  Head h{.rows = targets.elements(),
         .in = weight.size(1),
         .vocabulary = weight.size(0),
         .ignore = options.ignore,
         .block_rows = tiling.block_rows,
         .chunk = options.chunk_rows,
         .dtype = weight.dtype(),
         .wide = weight.dtype() == float64 ? float64 : float32,
         .device = x.device()};
  if (h.chunk == 0) {
    const std::int64_t row_bytes = round_up(std::min(block_columns, h.vocabulary), row_multiple) *
                                   static_cast<std::int64_t>(size_of(h.wide));
    h.chunk = std::max<std::int64_t>(1, tiling.bytes / row_bytes / h.block_rows) * h.block_rows;
  }
  h.chunk = round_up(h.chunk, h.block_rows);
  return h;
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& input, const Tensor& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  ops::require_defined("linear_cross_entropy", input, weight, targets);
  ops::require_floating("linear_cross_entropy", input, weight);
  const Tensor x = cast(input, weight.dtype());
  const Head h = describe(x, weight, targets, options);
  const RowStatistics rows = losses_of_rows(h, x, weight, targets);
  Tensor loss = Tensor::empty({}, h.wide, h.device);
  Tensor inverse_count = Tensor::empty({}, float64, h.device);
  TESSERA_LAUNCH(h.device, mean_loss,
                 {rows.loss.data(), targets.data(), targets.dtype(), loss.data(),
                  inverse_count.data_as<double>(), h.rows, h.ignore, h.wide});
  autograd::record(
      Op::linear_cross_entropy, {x, weight}, {loss},
      [h, saved = SavedHead{autograd::SavedTensor(x), autograd::SavedValue(weight),
                            autograd::SavedValue(targets), rows.log_sum_exp, inverse_count}](
          std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        gradients(h, saved, dout[0], sink);
      });
  return loss;
}

}  // namespace tessera

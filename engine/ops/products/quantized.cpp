// Numbers of a weight's tiles, and their products.
#include "engine/ops/products/quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "engine/device/launch.h"
#include "engine/device/memory_kind.h"
#include "kernels/blocks.h"

namespace tessera {
namespace {

QuantizedFormat format_of(const Tensor& weight) {
  return weight.dimensions() == 1 ? QuantizedFormat::nf4 : QuantizedFormat::int8;
}

// The elements of an nf4 weight, or 0: its bytes rise with them.
std::int64_t nf4_elements(std::int64_t bytes) {
  std::int64_t low = 0, high = bytes / (nf4_block / 2) + 1;  // blocks
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (Nf4Layout(middle * nf4_block).bytes <= bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return Nf4Layout(low * nf4_block).bytes == bytes ? low * nf4_block : 0;
}

void encode(const std::vector<float>& values, std::int64_t rows, std::int64_t columns,
            QuantizedFormat format, std::byte* out) {
  if (format == QuantizedFormat::int8) {
    std::byte* const scales = out + rows * columns;
    for (std::int64_t row = 0; row < rows; ++row) {
      const float scale = kernels::cpu::encode_int8_row(values.data() + row * columns,
                                                        out + row * columns, columns);
      std::memcpy(scales + 4 * row, &scale, sizeof(scale));
    }
    return;
  }
  const Nf4Layout layout(rows * columns);
  std::vector<float> scales(static_cast<std::size_t>(layout.blocks));
  kernels::cpu::encode_nf4(values.data(), out, scales.data(), layout.blocks);
  kernels::cpu::encode_nf4_scales(scales.data(), rows * columns, out + layout.scale_codes);
}

}  // namespace

Shape quantized_weight_shape(QuantizedFormat format, std::int64_t rows, std::int64_t columns) {
  const std::int64_t bytes = quantized_bytes(format, rows, columns);
  return format == QuantizedFormat::nf4 ? Shape{bytes} : Shape{rows, 1, columns + 4};
}

bool is_quantized_weight(const Tensor& weight) {
  return weight.defined() && weight.dtype() == uint8 &&
         (weight.dimensions() == 1 || (weight.dimensions() == 3 && weight.size(1) == 1));
}

std::int64_t parameter_elements(const Shape& shape, DType dtype) {
  if (dtype != uint8) return shape.elements();
  if (shape.dimensions() == 1) return nf4_elements(shape[0]);
  return shape.dimensions() == 3 ? shape[0] * (shape[2] - 4) : shape.elements();
}

Tensor quantize(const Tensor& matrix, QuantizedFormat format) {
  TESSERA_REQUIRE(matrix.dimensions() == 2 && is_floating(matrix.dtype()) &&
                      can_quantize(matrix.size(0), matrix.size(1)),
                  "quantize: {} {}; a floating matrix of a multiple of {} elements is possible",
                  matrix.shape().to_string(), name_of(matrix.dtype()), nf4_block);
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const Tensor values = cast(matrix.detach(), float32).to(Device::cpu());
  const float* const first = values.data_as<float>();
  const std::vector<float> numbers(first, first + values.elements());
  TESSERA_CHECK(
      std::all_of(numbers.begin(), numbers.end(), [](float value) { return std::isfinite(value); }),
      ErrorCode::numeric, "quantize: a matrix {} has an element that is not finite",
      matrix.shape().to_string());
  const MemoryScope kind(MemoryKind::parameters);
  Tensor codes = Tensor::empty(quantized_weight_shape(format, rows, columns), uint8, Device::cpu());
  encode(numbers, rows, columns, format, codes.data());
  return codes.to(matrix.device());
}

Tensor dequantize(const Tensor& weight, std::int64_t rows, std::int64_t columns, DType dtype) {
  return dequantize_rows(weight, rows, columns, dtype, 0, rows);
}

Tensor dequantize_rows(const Tensor& weight, std::int64_t rows, std::int64_t columns, DType dtype,
                       std::int64_t first, std::int64_t count) {
  TESSERA_REQUIRE(is_quantized_weight(weight) &&
                      weight.shape() == quantized_weight_shape(format_of(weight), rows, columns),
                  "dequantize: {} {} is not a matrix [{}, {}]", name_of(weight.dtype()),
                  weight.shape().to_string(), rows, columns);
  TESSERA_REQUIRE(first >= 0 && first % nf4_block == 0 && count >= 0 && first + count <= rows,
                  "dequantize: {} rows from {} of {}; a part begins at a multiple of {}", count,
                  first, rows, nf4_block);
  Tensor out = Tensor::empty({count, columns}, dtype, weight.device());
  TESSERA_LAUNCH(weight.device(), dequantize,
                 {.format = format_of(weight),
                  .weight = weight.data(),
                  .out = out.data(),
                  .rows = rows,
                  .columns = columns,
                  .first_row = first,
                  .row_count = count,
                  .first_column = 0,
                  .column_count = columns,
                  .dtype = dtype});
  return out;
}

namespace ops {
namespace {

// A run of the weight's rows with all columns, or of its columns with all rows.
class Tiles {
 public:
  // `width` runs over rows if `of_rows`.
  Tiles(const LinearShape& s, const Tensor& weight, bool of_rows)
      : s_(s), weight_(weight), of_rows_(of_rows) {
    rows_ = s.transposed ? s.out : s.in;
    columns_ = s.transposed ? s.in : s.out;
    const std::int64_t length = of_rows ? columns_ : rows_;
    width_ = std::min(of_rows ? rows_ : columns_,
                      std::max(nf4_block, dequantized_tile / length / nf4_block * nf4_block));
    numbers_ = Tensor::empty({width_ * length}, s.dtype, weight.device());
  }
  [[nodiscard]] std::int64_t width() const { return width_; }
  // The numbers of [first, first + count), dense.
  const std::byte* load(std::int64_t first, std::int64_t count) {
    TESSERA_LAUNCH(weight_.device(), dequantize,
                   {.format = format_of(weight_),
                    .weight = weight_.data(),
                    .out = numbers_.raw_data(),
                    .rows = rows_,
                    .columns = columns_,
                    .first_row = of_rows_ ? first : 0,
                    .row_count = of_rows_ ? count : rows_,
                    .first_column = of_rows_ ? 0 : first,
                    .column_count = of_rows_ ? columns_ : count,
                    .dtype = s_.dtype});
    return numbers_.raw_data();
  }

 private:
  const LinearShape& s_;
  const Tensor& weight_;
  bool of_rows_;
  std::int64_t rows_ = 0, columns_ = 0, width_ = 0;
  Tensor numbers_;
};

std::byte* row_of(const LinearShape& s, const Tensor& tensor, std::int64_t width,
                  std::int64_t column) {
  const std::int64_t element = s.first_row * width + column;
  return tensor.raw_data() + element * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

// A tile has a run of the result's columns, so that each sum is whole and is rounded once.
struct Side {
  const Tensor& from;
  const Tensor& to;
  std::int64_t inner, outer;  // columns of both
  bool accumulate;
  const Tensor& bias;
};

void multiply_tiles(const LinearShape& s, const Tensor& weight, bool of_rows, const Side& side) {
  if (s.rows == 0) return;
  Tiles tiles(s, weight, of_rows);
  for (std::int64_t first = 0; first < side.outer; first += tiles.width()) {
    const std::int64_t count = std::min(tiles.width(), side.outer - first);
    const std::byte* const numbers = tiles.load(first, count);
    const auto skipped = first * static_cast<std::int64_t>(size_of(s.dtype));
    TESSERA_LAUNCH(side.from.device(), matmul,
                   {.a = row_of(s, side.from, side.inner, 0),
                    .b = numbers,
                    .c = row_of(s, side.to, side.outer, first),
                    .m = s.rows,
                    .n = count,
                    .k = side.inner,
                    .lda = side.inner,
                    .ldb = of_rows ? side.inner : count,
                    .ldc = side.outer,
                    .transpose_b = of_rows,
                    .accumulate = side.accumulate,
                    .bias = side.bias.defined() ? side.bias.data() + skipped : nullptr,
                    .dtype = s.dtype,
                    .out_dtype = s.dtype});
  }
}

}  // namespace

std::int64_t outputs_of_quantized(const Tensor& weight, std::int64_t in, WeightLayout layout) {
  const QuantizedFormat format = format_of(weight);
  const bool by_outputs = layout == WeightLayout::out_in;
  const std::int64_t out = in == 0 ? 0 : parameter_elements(weight.shape(), weight.dtype()) / in;
  const std::int64_t rows = by_outputs ? out : in, columns = by_outputs ? in : out;
  TESSERA_REQUIRE(can_quantize(rows, columns) &&
                      weight.shape() == quantized_weight_shape(format, rows, columns),
                  "linear: x has {} features, which a weight {} of {} does not take", in,
                  weight.shape().to_string(), name_of(format));
  return out;
}

void quantized_product(const LinearShape& s, const Tensor& x, const Tensor& weight,
                       const Tensor& bias, const Tensor& result) {
  multiply_tiles(s, weight, s.transposed, {x, result, s.in, s.out, false, bias});
}

void quantized_input_gradient(const LinearShape& s, const Tensor& dresult, const Tensor& weight,
                              const autograd::GradientSink::Slot& dx) {
  multiply_tiles(s, weight, !s.transposed,
                 {dresult, dx.tensor, s.out, s.in, dx.accumulate, Tensor{}});
}

}  // namespace ops
}  // namespace tessera

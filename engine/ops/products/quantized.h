// Linear layers whose frozen weight is codes of base/quantized.h. linear() and the ops that contain
// it take such a weight in place of a floating one: they compute its numbers tile by tile, in the
// dtype of the rows, and multiply these. So the product is that of the numbers' matrix, and memory
// for one tile is needed beside the codes. The weight has no gradient.
#pragma once

#include <cstdint>

#include "base/quantized.h"
#include "engine/ops.h"
#include "engine/ops/products/linear_products.h"
#include "engine/tensor.h"

namespace tessera {

// Such a weight is uint8, [bytes] for nf4 and [rows, 1, columns + 4] for int8. Its matrix is
// [rows, columns] as the floating weight was.
Shape quantized_weight_shape(QuantizedFormat format, std::int64_t rows, std::int64_t columns);
bool is_quantized_weight(const Tensor& weight);
// The elements of a parameter: for such a weight, of its matrix.
std::int64_t parameter_elements(const Shape& shape, DType dtype);

// A matrix as codes, on its device. Error(numeric) if an element is not finite; logic_error if it
// does not consist of whole blocks (can_quantize()).
Tensor quantize(const Tensor& matrix, QuantizedFormat format);
// The numbers of a weight whose matrix is [rows, columns], as float32, bfloat16 or float16.
Tensor dequantize(const Tensor& weight, std::int64_t rows, std::int64_t columns, DType dtype);
// The same for rows [first, first + count) alone. `first` is a multiple of nf4_block.
Tensor dequantize_rows(const Tensor& weight, std::int64_t rows, std::int64_t columns, DType dtype,
                       std::int64_t first, std::int64_t count);

namespace ops {

// Elements of a tile at most, or 64 rows or columns of the weight.
inline constexpr std::int64_t dequantized_tile = std::int64_t{1} << 22;

// The outputs of a layer with `in` inputs. logic_error if the weight is for another number.
std::int64_t outputs_of_quantized(const Tensor& weight, std::int64_t in, WeightLayout layout);

// linear_product() and linear_input_gradient() for such a weight.
void quantized_product(const LinearShape& s, const Tensor& x, const Tensor& weight,
                       const Tensor& bias, const Tensor& result);
void quantized_input_gradient(const LinearShape& s, const Tensor& dresult, const Tensor& weight,
                              const autograd::GradientSink::Slot& dx);

}  // namespace ops
}  // namespace tessera

// The three products of a linear layer.
#include "engine/ops/products/linear_products.h"

#include "engine/device/launch.h"
#include "engine/ops/products/quantized.h"

namespace tessera::ops {
namespace {

// The bytes before the first row that a product reads or writes.
std::int64_t bytes_before(const LinearShape& s, const Tensor& tensor, std::int64_t width) {
  return s.first_row * width * static_cast<std::int64_t>(size_of(tensor.dtype()));
}

}  // namespace

void linear_product(const LinearShape& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Tensor& result) {
  if (is_quantized_weight(weight)) return quantized_product(s, x, weight, bias, result);
  TESSERA_LAUNCH(x.device(), matmul,
                 {.a = x.data() + bytes_before(s, x, s.in),
                  .b = weight.data(),
                  .c = result.raw_data() + bytes_before(s, result, s.out),
                  .m = s.rows,
                  .n = s.out,
                  .k = s.in,
                  .lda = s.in,
                  .ldb = s.transposed ? s.in : s.out,
                  .ldc = s.out,
                  .transpose_b = s.transposed,
                  .bias = bias.defined() ? bias.data() : nullptr,
                  .dtype = s.dtype,
                  .out_dtype = s.dtype});
}

void linear_input_gradient(const LinearShape& s, const Tensor& dresult, const Tensor& weight,
                           const autograd::GradientSink::Slot& dx) {
  if (is_quantized_weight(weight)) return quantized_input_gradient(s, dresult, weight, dx);
  TESSERA_LAUNCH(dresult.device(), matmul,
                 {.a = dresult.data() + bytes_before(s, dresult, s.out),
                  .b = weight.data(),
                  .c = dx.tensor.raw_data() + bytes_before(s, dx.tensor, s.in),
                  .m = s.rows,
                  .n = s.in,
                  .k = s.out,
                  .lda = s.out,
                  .ldb = s.transposed ? s.in : s.out,
                  .ldc = s.in,
                  .transpose_b = !s.transposed,
                  .accumulate = dx.accumulate,
                  .dtype = s.dtype,
                  .out_dtype = s.dtype});
}

void linear_weight_gradient(const LinearShape& s, const Tensor& x, const Tensor& dresult,
                            const autograd::GradientSink::Slot& dweight) {
  // The weight's rows are columns of one operand, and its columns those of the other.
  const std::int64_t m = s.transposed ? s.out : s.in;
  const std::int64_t n = s.transposed ? s.in : s.out;
  const Tensor& left = s.transposed ? dresult : x;
  const Tensor& right = s.transposed ? x : dresult;
  TESSERA_LAUNCH(x.device(), matmul,
                 {.a = left.data() + bytes_before(s, left, m),
                  .b = right.data() + bytes_before(s, right, n),
                  .c = dweight.tensor.raw_data(),
                  .m = m,
                  .n = n,
                  .k = s.rows,
                  .lda = m,
                  .ldb = n,
                  .ldc = n,
                  .transpose_a = true,
                  .accumulate = dweight.accumulate,
                  .dtype = s.dtype,
                  .out_dtype = dweight.tensor.dtype()});
}

}  // namespace tessera::ops

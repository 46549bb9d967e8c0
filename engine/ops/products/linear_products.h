// The products of linear layers and of their gradients, launched on a range of rows.
#pragma once

#include <cstdint>

#include "engine/autograd.h"
#include "engine/tensor.h"

namespace tessera::ops {

// Rows of x [.., in] times a weight. The result has rows of `out` elements. The product reads and
// writes the rows from `first_row` on, in each tensor that has rows.
struct LinearShape {
  std::int64_t rows, in, out;
  bool transposed;  // the weight is [out, in]; otherwise [in, out]
  DType dtype;      // of the rows, and of the weight if that is floating
  std::int64_t first_row = 0;
};

// result = x W (+ bias). The bias may be undefined. Here and in the next one the weight may be
// codes (quantized.h).
void linear_product(const LinearShape& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Tensor& result);
// dx (+)= dresult W^T.
void linear_input_gradient(const LinearShape& s, const Tensor& dresult, const Tensor& weight,
                           const autograd::GradientSink::Slot& dx);
// dW (+)= x^T dresult. It rounds only to the slot's dtype, which may be float32 for a 16-bit
// weight.
void linear_weight_gradient(const LinearShape& s, const Tensor& x, const Tensor& dresult,
                            const autograd::GradientSink::Slot& dweight);

}  // namespace tessera::ops

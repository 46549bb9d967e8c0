// Linear layers whose weight is stored as 8-bit integers, for models that only compute. linear()
// and the ops that contain it take such a weight in place of a floating one.
#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace tessera {

// Such a weight is uint8 [out, kernels::cpu::int8_row_bytes(in)] on a CPU, in the layout of
// kernels/cpu/matmul/int8_linear.h, whatever WeightLayout the layer has.
Shape int8_weight_shape(std::int64_t in, std::int64_t out);

// True if linear() of x and the weight is int8_linear(): x is floating, and the weight has the
// dtype and the row size of such a weight for x. The caller refuses other integers.
bool is_int8_product(const Tensor& x, const Tensor& weight);

// x [.., in], float32, bfloat16 or float16, times the weight, plus the bias, which may be
// undefined: [.., out] in x's dtype. Rows of x are rounded to integers
// (kernels/cpu/matmul/int8_linear.h). It has no backward: logic_error while gradients are recorded.
Tensor int8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

}  // namespace tessera

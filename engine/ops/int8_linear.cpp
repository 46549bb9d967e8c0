// Checks the operands of a product with 8-bit integers, and calls the kernel.
#include "engine/ops/int8_linear.h"

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "kernels/cpu/matmul/int8_linear.h"

namespace tessera {

Shape int8_weight_shape(std::int64_t in, std::int64_t out) {
  return {out, kernels::cpu::int8_row_bytes(in)};
}

bool is_int8_product(const Tensor& x, const Tensor& weight) {
  return weight.defined() && weight.dtype() == uint8 && weight.dimensions() == 2 && x.defined() &&
         is_floating(x.dtype()) && x.dimensions() >= 1 && x.size(-1) > 0 &&
         weight.size(1) == kernels::cpu::int8_row_bytes(x.size(-1));
}

Tensor int8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  ops::require_floating("int8_linear", x);
  ops::require_same_device("int8_linear", x, weight, bias);
  TESSERA_REQUIRE(!grad_enabled(),
                  "int8_linear: a weight of 8-bit integers has no gradient; compute without "
                  "gradients (NoGradGuard)");
  TESSERA_REQUIRE(x.dimensions() >= 1 && weight.dimensions() == 2 && x.size(-1) > 0 &&
                      weight.size(1) == kernels::cpu::int8_row_bytes(x.size(-1)),
                  "int8_linear: x of shape {} and a weight of {} bytes", x.shape().to_string(),
                  weight.shape().to_string());
  TESSERA_REQUIRE(x.device().type == DeviceType::cpu || x.is_meta(),
                  "int8_linear: x is on {}; only CPUs have this product", x.device().to_string());
  const std::int64_t out = weight.size(0);
  TESSERA_REQUIRE(!bias.defined() || bias.elements() == out,
                  "int8_linear: bias of shape {} for {} outputs", bias.shape().to_string(), out);
  const Tensor same_bias = bias.defined() ? cast(bias, x.dtype()) : Tensor{};
  Shape shape = x.shape();
  shape[-1] = out;
  Tensor result = Tensor::empty(shape, x.dtype(), x.device());
  if (x.is_meta()) return result;
  kernels::cpu::int8_linear({.x = x.data(),
                             .w = weight.data(),
                             .bias = same_bias.defined() ? same_bias.data() : nullptr,
                             .out = result.data(),
                             .rows = x.elements() / x.size(-1),
                             .inputs = x.size(-1),
                             .outputs = out,
                             .dtype = x.dtype()});
  return result;
}

}  // namespace tessera

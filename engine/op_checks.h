// Checks that every op makes on its inputs before it launches anything.
#pragma once

#include "base/error.h"
#include "engine/tensor.h"

namespace tessera::ops {

// Throws a logic_error if one of the inputs is undefined; inputs are counted from 1.
template <class... Tensors>
void require_defined(const char* op, const Tensors&... inputs) {
  if ((inputs.defined() && ...)) [[likely]]
    return;
  int number = 0, missing = 0;
  ((++number, missing = missing == 0 && !inputs.defined() ? number : missing), ...);
  misuse(
      "{}: input {} is an undefined tensor: it was default-constructed or moved from; assign a "
      "tensor to it first",
      op, missing);
}

// Also throws if one of them does not have a floating dtype.
template <class... Tensors>
void require_floating(const char* op, const Tensors&... inputs) {
  require_defined(op, inputs...);
  if ((is_floating(inputs.dtype()) && ...)) [[likely]]
    return;
  int number = 0;
  const auto check = [&](const Tensor& input) {
    ++number;
    TESSERA_REQUIRE(is_floating(input.dtype()),
                    "{}: input {} is {} of shape {}, and {} computes with floating dtypes; cast it "
                    "with cast(tensor, float32)",
                    op, number, name_of(input.dtype()), input.shape().to_string(), op);
  };
  (check(inputs), ...);
}

// Throws a logic_error unless the defined tensors are on the first one's device. `meta` tensors
// match every device: their ops launch nothing.
template <class... Tensors>
void require_same_device(const char* op, const Tensor& first, const Tensors&... others) {
  const auto check = [&](const Tensor& other) {
    if (!other.defined()) return;
    TESSERA_REQUIRE(first.device() == other.device() || first.is_meta() || other.is_meta(),
                    "{}: inputs on {} and {}; move one of them with Tensor::to(device)", op,
                    first.device().to_string(), other.device().to_string());
  };
  (check(others), ...);
}

}  // namespace tessera::ops

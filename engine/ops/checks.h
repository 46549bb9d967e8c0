// What every op checks of its inputs before it launches anything.
#pragma once

#include "engine/tensor.h"
#include "kernels/base/error.h"

namespace tessera::ops {

// A logic_error unless the defined tensors lie on the first one's device. `meta` tensors go with
// every device: their ops launch nothing.
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

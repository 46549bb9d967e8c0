// Tensors of any dtype from doubles.
#pragma once

#include <vector>

#include "engine/tensor_ops.h"

namespace tessera::testing {

// Integers and booleans (not 0 is true) keep their values; floating dtypes round.
inline Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype) {
  switch (dtype) {
    case int32:
      return Tensor::from(std::vector<std::int32_t>(values.begin(), values.end()), shape);
    case int64:
      return Tensor::from(std::vector<std::int64_t>(values.begin(), values.end()), shape);
    case uint8:
      return Tensor::from(std::vector<std::uint8_t>(values.begin(), values.end()), shape);
    case boolean:
      return not_equal(Tensor::from(values, shape), 0);
    default:
      return cast(Tensor::from(values, shape), dtype);
  }
}

}  // namespace tessera::testing

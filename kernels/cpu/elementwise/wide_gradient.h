// Gradients in fp64, for optimizer steps of fp64 parameters.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "base/low_precision.h"

namespace tessera::kernels {

// to[i] = element first + i of `gradient`.
inline void widen_gradient(const void* gradient, DType dtype, std::int64_t first,
                           std::int64_t count, double* to) {
  const auto widen = [&](const auto* values) {
    for (std::int64_t i = 0; i < count; ++i)
      to[i] = static_cast<double>(to_float(values[first + i]));
  };
  switch (dtype) {
    case DType::float32:
      return widen(static_cast<const float*>(gradient));
    case DType::bfloat16:
      return widen(static_cast<const BFloat16*>(gradient));
    case DType::float16:
      return widen(static_cast<const Float16*>(gradient));
    default:
      std::copy_n(static_cast<const double*>(gradient) + first, count, to);
  }
}

}  // namespace tessera::kernels

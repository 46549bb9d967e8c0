// Maps a DType at run time to a storage type at compile time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"

namespace tessera::kernels::cpu {

// Passed to generic lambdas to name a type.
template <class T>
struct TypeTag {
  using type = T;
};

// Calls body(TypeTag<T>) for the floating dtype.
template <class Body>
void for_floating(DType dtype, const char* kernel, Body&& body) {
  switch (dtype) {
    case DType::float32:
      return body(TypeTag<float>{});
    case DType::bfloat16:
      return body(TypeTag<BFloat16>{});
    case DType::float16:
      return body(TypeTag<Float16>{});
    case DType::float64:
      return body(TypeTag<double>{});
    default:
      break;
  }
  misuse("{}: {} is not a floating dtype; cast the tensor first", kernel, name_of(dtype));
}

// Elements of work below which another thread costs more than it saves.
inline constexpr std::int64_t parallel_grain = 16384;

// The least number of rows per thread, for rows of `dim` elements.
inline std::int64_t rows_grain(std::int64_t dim) {
  return std::max<std::int64_t>(1, parallel_grain / std::max<std::int64_t>(1, dim));
}

}  // namespace tessera::kernels::cpu

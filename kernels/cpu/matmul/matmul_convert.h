// Converts matrices between 16-bit storage and single precision, row by row.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels::cpu {

// out[r, c] = in[r, c]; strides in elements. `dtype` (bfloat16 or float16) is the type of the
// 16-bit side.
void widen_matrix(const void* in, DType dtype, std::int64_t in_stride, float* out,
                  std::int64_t out_stride, std::int64_t rows, std::int64_t columns);
void narrow_matrix(const float* in, std::int64_t in_stride, void* out, DType dtype,
                   std::int64_t out_stride, std::int64_t rows, std::int64_t columns);

}  // namespace tessera::kernels::cpu

// Offsets into strided arrays, found by division from an element's number.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/map.h"
#include "kernels/strided.h"

namespace tessera::kernels::cuda {

// offset[k] = where element `i` of the first `dimensions` dimensions is in operand k.
template <int operands>
__device__ __forceinline__ void strided_offsets(const StridedShape<operands>& shape, int dimensions,
                                                std::int64_t i, std::int64_t (&offset)[operands]) {
#pragma unroll
  for (int k = 0; k < operands; ++k) offset[k] = 0;
#pragma unroll
  for (int d = most_dimensions - 1; d >= 0; --d) {
    if (d >= dimensions) continue;
    const Quotient place = divide(i, shape.sizes[d]);
#pragma unroll
    for (int k = 0; k < operands; ++k) offset[k] += place.remainder * shape.strides[k][d];
    i = place.quotient;
  }
}

// Bytes from the first to the last element of an operand whose strides are not negative.
template <int operands>
std::int64_t span_bytes(const StridedShape<operands>& shape, int operand, std::size_t element) {
  if (shape.elements() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < shape.dimensions; ++d)
    last += (shape.sizes[d] - 1) * shape.strides[operand][d];
  return (last + 1) * static_cast<std::int64_t>(element);
}

}  // namespace tessera::kernels::cuda

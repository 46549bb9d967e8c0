// Arrays of ids and targets: int32 or int64, distinguished at run time, because one more
// instruction per row is cheaper than twice the kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/error.h"
#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/launch.h"

namespace tessera::kernels::cuda {

struct Indices {
  const void* memory;
  bool wide;  // int64

  __device__ __forceinline__ std::int64_t operator[](std::int64_t i) const {
    return wide ? static_cast<const std::int64_t*>(memory)[i]
                : static_cast<const std::int32_t*>(memory)[i];
  }
};

// Throws std::logic_error for any other dtype.
inline Indices indices_of(const void* memory, DType dtype, const char* kernel) {
  if (dtype != DType::int32 && dtype != DType::int64) unsupported(kernel, dtype);
  return {memory, dtype == DType::int64};
}

inline Access reads(const Indices& indices, std::int64_t count) {
  return reads(indices.memory, count * (indices.wide ? 8 : 4));
}

}  // namespace tessera::kernels::cuda

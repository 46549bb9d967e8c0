// Storage types on the device, their arithmetic type, and accesses of 16 bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/cuda/device/error.h"
#include "kernels/cuda/device/gpu.h"

namespace tessera::kernels::cuda {

// The arithmetic type: fp32, or fp64 for fp64.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ __forceinline__ float to_compute(float value) {
  return value;
}
__device__ __forceinline__ double to_compute(double value) {
  return value;
}
__device__ __forceinline__ float to_compute(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float to_compute(__half value) {
  return __half2float(value);
}

// Rounds to nearest even, once.
template <class T>
__device__ __forceinline__ T from_compute(Compute<T> value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

// The same from fp64, without the step through fp32.
template <class T>
__host__ __device__ __forceinline__ T round_once(double value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __double2bfloat16(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __double2half(value);
  } else {
    return static_cast<T>(value);
  }
}

// Sixteen bytes of T, loaded and stored at once. The address must be 16-byte aligned.
template <class T>
struct alignas(16) Vector {
  static constexpr int size = 16 / static_cast<int>(sizeof(T));
  T value[size];
};
template <class T>
__device__ __forceinline__ Vector<T> load_vector(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}
// An unsigned type, or a vector of them, of so many bytes.
template <std::size_t bytes>
using Word = std::conditional_t<
    bytes == 16, uint4,
    std::conditional_t<bytes == 8, uint2,
                       std::conditional_t<bytes == 4, std::uint32_t, std::uint16_t>>>;

template <class T>
__device__ __forceinline__ void store_vector(T* to, const Vector<T>& vector) {
  *reinterpret_cast<Vector<T>*>(to) = vector;
}
// Stores a value of 2 to 16 bytes to global memory at once. Next to element-wise stores of the same
// values nvcc splits store_vector().
template <class Value, class T>
__device__ __forceinline__ void store_whole(T* to, const Value& value) {
  using ValueWord = Word<sizeof(Value)>;
  __stwb(reinterpret_cast<ValueWord*>(to), std::bit_cast<ValueWord>(value));
}
// True if all of these allow vectors (null: yes).
template <class... Pointers>
bool aligned_for_vectors(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// Passed to generic lambdas to name a type.
template <class T>
struct TypeTag {
  using type = T;
};

// Calls body(TypeTag<T>) for the floating dtype, T its type on the device.
template <class Body>
void for_floating(DType dtype, const char* kernel, Body&& body) {
  switch (dtype) {
    case DType::float32:
      return body(TypeTag<float>{});
    case DType::bfloat16:
      return body(TypeTag<__nv_bfloat16>{});
    case DType::float16:
      return body(TypeTag<__half>{});
    case DType::float64:
      return body(TypeTag<double>{});
    default:
      unsupported(kernel, dtype);
  }
}

// Blocks for n items at `per_block` each, at most `most` (a grid-stride loop processes the rest).
inline unsigned blocks_for(std::int64_t n, std::int64_t per_block, std::int64_t most = 1 << 20) {
  const std::int64_t blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

}  // namespace tessera::kernels::cuda

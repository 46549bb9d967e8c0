// Sums and maxima over a warp and over a block, always in the same order.
#pragma once

#include "kernels/cuda/device/gpu.h"

namespace tessera::kernels::cuda {

struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Maximum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Every lane gets the result. All 32 lanes call it.
template <class Operation, class T>
__device__ __forceinline__ T warp_reduce(T value) {
#pragma unroll
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    value = Operation{}(value, __shfl_xor_sync(whole_warp, value, offset));
  }
  return value;
}

template <class T, int warps>
struct BlockPartials {
  T value[warps];
};

// Every thread gets the result. All `threads` threads of the block (a multiple of 32) call it; a
// barrier at its end allows an immediate next call.
template <class Operation, int threads, class T>
__device__ __forceinline__ T block_reduce(T value) {
  static_assert(threads % warp_size == 0 && threads <= warp_size * warp_size);
  constexpr int warps = threads / warp_size;
  value = warp_reduce<Operation>(value);
  if constexpr (warps > 1) {
    auto& partials = shared_memory<BlockPartials<T, warps>>();
    const int lane = static_cast<int>(threadIdx.x) % warp_size;
    if (lane == 0) partials.value[threadIdx.x / warp_size] = value;
    __syncthreads();
    value = partials.value[0];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) value = Operation{}(value, partials.value[warp]);
    __syncthreads();
  } else {
    __syncwarp();  // shuffles alone do not order memory accesses
  }
  return value;
}

template <int threads, class T>
__device__ __forceinline__ T block_sum(T value) {
  return block_reduce<Add, threads>(value);
}
template <int threads, class T>
__device__ __forceinline__ T block_maximum(T value) {
  return block_reduce<Maximum, threads>(value);
}

}  // namespace tessera::kernels::cuda

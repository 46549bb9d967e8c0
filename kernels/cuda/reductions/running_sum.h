// Running sums of a block's threads.
#pragma once

#include "kernels/cuda/device/gpu.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {

inline constexpr int running_threads = 128;

struct RunningSum {
  double here;   // of the threads up to this one
  double whole;  // of all threads
};
struct RunningSums {
  double value[running_threads];
};

// All threads of the block call it; a barrier at its end allows an immediate next call.
__device__ __forceinline__ RunningSum running_sum_of_block(double value) {
  auto& shared = shared_memory<RunningSums>();
  const int thread = static_cast<int>(threadIdx.x);
  shared.value[thread] = value;
  __syncthreads();
#pragma unroll
  for (int distance = 1; distance < running_threads; distance *= 2) {
    const double left = thread >= distance ? shared.value[thread - distance] : 0.0;
    __syncthreads();
    shared.value[thread] += left;
    __syncthreads();
  }
  const RunningSum sum = {shared.value[thread], shared.value[running_threads - 1]};
  __syncthreads();
  return sum;
}

}  // namespace tessera::kernels::cuda

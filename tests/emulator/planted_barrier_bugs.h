// Planted bugs: threads of a block that reach barriers wrongly, or not at all.
#pragma once

#include "emulator/planted_bug.h"
#include "kernels/cuda/device/block_reduce.h"

namespace tessera::testing::barrier {

using namespace kernels::cuda;

constexpr int threads = 128;

// Reads the next thread's element without a barrier after its write.
__global__ inline void missing_barrier(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  const unsigned i = threadIdx.x;
  row[i] = x[i];
  y[i] = row[(i + 1) % blockDim.x];
}

// Sums the values of warps; a second call overwrites values that slower warps still read.
__device__ inline float sum_without_last_barrier(float value) {
  struct Partials {
    float value[threads / warp_size];
  };
  auto& partials = shared_memory<Partials>();
  value = warp_reduce<Add>(value);
  if (threadIdx.x % warp_size == 0) partials.value[threadIdx.x / warp_size] = value;
  __syncthreads();
  float sum = 0;
  for (const float partial : partials.value) sum += partial;
  return sum;
}
__global__ inline void missing_second_barrier(float* y, const float* x) {
  const float once = sum_without_last_barrier(x[threadIdx.x]);
  const float twice = sum_without_last_barrier(2 * x[threadIdx.x]);
  y[threadIdx.x] = once + 10 * twice;
}

// Uses an order of lanes as if it were an order of warps.
__global__ inline void warp_barrier_between_warps(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  const unsigned i = threadIdx.x;
  row[i] = x[i];
  __syncwarp();
  y[i] = row[(i + warp_size) % blockDim.x];
}

__global__ inline void divergent_barrier(float* y, const float* x) {
  if (threadIdx.x < 100) __syncthreads();
  y[threadIdx.x] = x[threadIdx.x];
}

__global__ inline void barriers_in_both_branches(float* y, const float* x) {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    y[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
  }
}

__global__ inline void exit_before_barrier(float* y, const float* x, unsigned n) {
  auto* row = dynamic_shared_memory<float>();
  const unsigned i = threadIdx.x;
  if (i >= n) return;
  row[i] = x[i];
  __syncthreads();
  y[i] = row[n - 1 - i];
}

__global__ inline void exit_after_others_wait(float* y, const float* x) {
  if (threadIdx.x + 1 == blockDim.x) return;
  y[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
}

// Some threads run one iteration more than others.
__global__ inline void barrier_in_uneven_loop(float* y, const float* x) {
  float sum = 0;
  for (unsigned i = threadIdx.x; i < 200; i += blockDim.x) {
    sum += x[i];
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}

template <auto kernel>
bool shifted_by(int shift) {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads);
  run_block(threads, threads * sizeof(float), [&] { kernel(y.data(), x.data()); });
  return all_of(y, [&](int i) { return x[(i + shift) % threads]; });
}

template <auto kernel>
bool only_runs() {
  const auto x = Array<float>::counting(256);
  const Array<float> y(threads);
  run_block(threads, 0, [&] { kernel(y.data(), x.data()); });
  return true;
}

inline bool run_missing_second_barrier() {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads);
  run_block(threads, 0, [&] { missing_second_barrier(y.data(), x.data()); });
  constexpr float sum = threads * (threads - 1) / 2;
  return all_of(y, [](int) { return 21 * sum; });
}

inline bool run_exit_before_barrier() {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads);
  run_block(threads, threads * sizeof(float),
            [&] { exit_before_barrier(y.data(), x.data(), 100); });
  return true;
}

inline const std::vector<Case>& cases() {
  constexpr Expected order{Sign::numbers, Sign::numbers, Sign::sanitizer};
  constexpr Expected report{Sign::report, Sign::report, Sign::report};
  static const std::vector<Case> all = {
      {"missing_barrier", order, [] { return shifted_by<missing_barrier>(1); }},
      {"missing_second_barrier", order, run_missing_second_barrier},
      {"warp_barrier_between_warps", order,
       [] { return shifted_by<warp_barrier_between_warps>(warp_size); }},
      {"divergent_barrier", report, only_runs<divergent_barrier>},
      {"barriers_in_both_branches", report, only_runs<barriers_in_both_branches>},
      {"exit_before_barrier", report, run_exit_before_barrier},
      {"exit_after_others_wait", report, only_runs<exit_after_others_wait>},
      {"barrier_in_uneven_loop", report, only_runs<barrier_in_uneven_loop>},
  };
  return all;
}

}  // namespace tessera::testing::barrier

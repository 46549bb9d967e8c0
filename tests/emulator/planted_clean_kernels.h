// Correct versions of the planted kernels: no build may report anything.
#pragma once

#include "emulator/planted_bug.h"
#include "kernels/cuda/device/block_reduce.h"

namespace tessera::testing::clean {

using namespace kernels::cuda;

constexpr int threads = 128;

__global__ inline void two_block_sums(float* y, const float* x) {
  const float once = block_sum<threads>(x[threadIdx.x]);
  const float twice = block_sum<threads>(2 * x[threadIdx.x]);
  y[threadIdx.x] = once + 10 * twice;
}

__global__ inline void neighbours_through_shared_memory(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  row[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = row[threadIdx.x ^ 1];
}

// Warps exit, as a whole and in part, after the remaining lanes have agreed on their mask.
__global__ inline void warps_exit(float* y, const float* x, unsigned n) {
  const bool stays = threadIdx.x < n;
  const unsigned mask = __ballot_sync(whole_warp, stays);
  if (!stays) return;
  y[threadIdx.x] = __shfl_xor_sync(mask, x[threadIdx.x], 1);
}

// The halves of each warp take different branches.
__global__ inline void half_warps(float* y, const float* x) {
  float value = x[threadIdx.x];
  if (threadIdx.x % warp_size < 16) {
    value = __shfl_xor_sync(0xffffu, value, 1);
  } else {
    value = __shfl_xor_sync(0xffff0000u, value, 1);
  }
  y[threadIdx.x] = value;
}

__global__ inline void last_block_sums(float* partials, unsigned* counter, float* sum,
                                       const float* x) {
  if (threadIdx.x > 0) return;
  partials[blockIdx.x] = x[blockIdx.x];
  __threadfence();
  if (atomicInc(counter, gridDim.x - 1) + 1 < gridDim.x) return;
  float all = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) all += partials[i];
  *sum = all;
}

__global__ inline void atomic_sums(float* y, const float* x) {
  auto* sum = dynamic_shared_memory<float>();
  if (threadIdx.x == 0) *sum = 0;
  __syncthreads();
  atomicAdd(sum, x[threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(y, *sum);
}

// Two buffers: one is read while the other is filled.
__global__ inline void pipelined_copies(float* y, const float* x, int tiles) {
  auto* buffers = dynamic_shared_memory<float>();
  const unsigned tile = 4 * blockDim.x;
  const auto fetch = [&](int i) {
    if (i < tiles) {
      copy_async_16(buffers + i % 2 * tile + 4 * threadIdx.x, x + i * tile + 4 * threadIdx.x);
    }
    copy_async_commit();
  };
  fetch(0);
  for (int i = 0; i < tiles; ++i) {
    fetch(i + 1);
    copy_async_wait<1>();
    __syncthreads();
    y[i * tile + threadIdx.x] = buffers[i % 2 * tile + (4 * threadIdx.x + 4) % tile];
    __syncthreads();
  }
  copy_async_wait<0>();
}

struct Tile {
  alignas(16) __nv_bfloat16 element[16 * 16];
};
// y = x * x for the tile of ones: all elements are sixteen.
__global__ inline void tile_product(float* y) {
  auto& tile = shared_memory<Tile>();
  for (unsigned i = threadIdx.x; i < 256; i += warp_size) tile.element[i] = __float2bfloat16(1.0f);
  __syncwarp();
  const unsigned row = threadIdx.x % 16;
  const unsigned column = threadIdx.x / 16 * 8;
  std::uint32_t a[4], b[4];
  load_matrix_x4(a, &tile.element[row * 16 + column]);
  load_matrix_x4_transposed(b, &tile.element[row * 16 + column]);
  const std::uint32_t left[2] = {b[0], b[1]};
  float sum[4] = {};
  mma_bfloat16(sum, a, left, sum);
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = sum[i];
}

template <auto kernel>
bool neighbours_swapped(std::size_t shared_bytes) {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads);
  run_block(threads, shared_bytes, [&] { kernel(y.data(), x.data()); });
  return all_of(y, [&](int i) { return x[i ^ 1]; });
}

inline bool run_two_block_sums() {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads);
  run_block(threads, 0, [&] { two_block_sums(y.data(), x.data()); });
  constexpr float sum = threads * (threads - 1) / 2;
  return all_of(y, [](int) { return 21 * sum; });
}

inline bool run_warps_exit() {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(48);
  run_block(threads, 0, [&] { warps_exit(y.data(), x.data(), 48); });
  return all_of(y, [&](int i) { return x[i ^ 1]; });
}

inline bool run_last_block_sums() {
  constexpr int blocks = 16;
  const auto x = Array<float>::counting(blocks);
  const Array<float> partials(blocks), sum(1);
  const Array<unsigned> counter(1);
  run_blocks(dim3(blocks), dim3(warp_size), 0,
             [&] { last_block_sums(partials.data(), counter.data(), sum.data(), x.data()); });
  return sum[0] == blocks * (blocks - 1) / 2;
}

inline bool run_atomic_sums() {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(1);
  run_blocks(dim3(8), dim3(threads), sizeof(float), [&] { atomic_sums(y.data(), x.data()); });
  return y[0] == 8 * (threads * (threads - 1) / 2);
}

inline bool run_pipelined_copies() {
  constexpr int tiles = 5, tile = 4 * threads;
  const auto x = Array<float>::counting(tiles * tile);
  const Array<float> y(tiles * tile, -1);
  run_block(threads, 2 * tile * sizeof(float),
            [&] { pipelined_copies(y.data(), x.data(), tiles); });
  return all_of(y, [&](int i) {
    const int within = i % tile;
    return within < threads ? x[i - within + (4 * within + 4) % tile] : -1.0f;
  });
}

inline bool run_tile_product() {
  const Array<float> y(4 * warp_size);
  run_block(warp_size, 0, [&] { tile_product(y.data()); });
  return all_of(y, [](int) { return 16.0f; });
}

inline const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"clean_two_block_sums", {}, run_two_block_sums},
      {"clean_neighbours_through_shared_memory",
       {},
       [] {
         return neighbours_swapped<neighbours_through_shared_memory>(threads * sizeof(float));
       }},
      {"clean_warps_exit", {}, run_warps_exit},
      {"clean_half_warps", {}, [] { return neighbours_swapped<half_warps>(0); }},
      {"clean_last_block_sums", {}, run_last_block_sums},
      {"clean_atomic_sums", {}, run_atomic_sums},
      {"clean_pipelined_copies", {}, run_pipelined_copies},
      {"clean_tile_product", {}, run_tile_product},
  };
  return all;
}

}  // namespace tessera::testing::clean

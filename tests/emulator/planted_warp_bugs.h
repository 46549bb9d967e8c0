// Planted bugs: lanes of a warp that disagree.
#pragma once

#include "emulator/planted_bug.h"

namespace tessera::testing::warp {

using namespace kernels::cuda;

// Reads its neighbour's element of shared memory without ordering the two accesses.
__global__ inline void missing_warp_barrier(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  row[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = row[threadIdx.x ^ 1];
}

// A shuffle gets the neighbour's value but does not order earlier writes.
__global__ inline void shuffle_as_barrier(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  row[threadIdx.x] = x[threadIdx.x];
  const int neighbour = __shfl_xor_sync(whole_warp, static_cast<int>(threadIdx.x), 1);
  y[threadIdx.x] = row[neighbour];
}

__global__ inline void half_of_the_mask_comes(float* y, const float* x) {
  float value = x[threadIdx.x];
  if (threadIdx.x < 16) value += __shfl_xor_sync(whole_warp, value, 1);
  y[threadIdx.x] = value;
}

__global__ inline void different_masks(float* y, const float* x) {
  const unsigned mask = threadIdx.x < 16 ? whole_warp : 0x7fffffffu;
  y[threadIdx.x] = __shfl_xor_sync(mask, x[threadIdx.x], 1);
}

__global__ inline void caller_not_in_mask(float* y, const float* x) {
  y[threadIdx.x] = __shfl_xor_sync(0xffffu, x[threadIdx.x], 1);
}

__global__ inline void source_not_in_mask(float* y, const float* x) {
  float value = x[threadIdx.x];
  if (threadIdx.x < 16) value = __shfl_down_sync(0xffffu, value, 8);
  y[threadIdx.x] = value;
}

__global__ inline void exited_lane_in_mask(float* y, const float* x) {
  if (threadIdx.x >= 20) return;
  y[threadIdx.x] = __shfl_xor_sync(whole_warp, x[threadIdx.x], 1);
}

// The set of active lanes may change at any time; it is not an agreement between the lanes.
__global__ inline void active_mask_as_agreement(float* y, const float* x) {
  if (threadIdx.x >= 20) return;
  y[threadIdx.x] = __shfl_xor_sync(__activemask(), x[threadIdx.x], 1);
}

__global__ inline void different_operations(float* y, const float* x) {
  float value = x[threadIdx.x];
  if (threadIdx.x % 2 == 0) {
    value += __shfl_xor_sync(whole_warp, value, 1);
  } else {
    value += __shfl_down_sync(whole_warp, value, 1);
  }
  y[threadIdx.x] = value;
}

__global__ inline void product_of_half_a_warp(float* y) {
  const std::uint32_t a[4] = {}, b[2] = {};
  float sum[4] = {};
  if (threadIdx.x < 16) mma_bfloat16(sum, a, b, sum);
  y[threadIdx.x] = sum[0];
}

struct Tile {
  alignas(16) std::uint16_t element[32 * 8 + 8];
};

__global__ inline void misaligned_matrix_row(float* y) {
  auto& tile = shared_memory<Tile>();
  for (unsigned i = threadIdx.x; i < 32 * 8 + 8; i += warp_size) tile.element[i] = 0;
  __syncwarp();
  std::uint32_t fragment[4];
  load_matrix_x4(fragment, &tile.element[threadIdx.x * 8 + 2]);
  y[threadIdx.x] = static_cast<float>(fragment[0]);
}

__global__ inline void matrix_row_in_global_memory(float* y, const std::uint16_t* tile) {
  std::uint32_t fragment[4];
  load_matrix_x4(fragment, tile);
  y[threadIdx.x] = static_cast<float>(fragment[0]);
}

// The lanes write the tile, which their warp loads at once.
__global__ inline void matrix_load_without_barrier(float* y) {
  auto& tile = shared_memory<Tile>();
  for (unsigned i = 0; i < 8; ++i) tile.element[threadIdx.x + warp_size * i] = 1;
  std::uint32_t fragment[4];
  load_matrix_x4(fragment, &tile.element[threadIdx.x * 8]);
  y[threadIdx.x] = static_cast<float>(fragment[0] & 0xffffu);
}

template <auto kernel>
bool neighbours_swapped() {
  const auto x = Array<float>::counting(warp_size);
  const Array<float> y(warp_size);
  run_block(warp_size, warp_size * sizeof(float), [&] { kernel(y.data(), x.data()); });
  return all_of(y, [&](int i) { return x[i ^ 1]; });
}

template <auto kernel>
bool only_runs() {
  const auto x = Array<float>::counting(warp_size);
  const Array<float> y(warp_size);
  run_block(warp_size, 0, [&] { kernel(y.data(), x.data()); });
  return true;
}

template <auto kernel>
bool runs_on_result() {
  const Array<float> y(warp_size);
  run_block(warp_size, 0, [&] { kernel(y.data()); });
  return true;
}

inline bool run_matrix_row_in_global_memory() {
  const Array<float> y(warp_size);
  alignas(16) const std::uint16_t tile[8] = {};
  run_block(warp_size, 0, [&] { matrix_row_in_global_memory(y.data(), tile); });
  return true;
}

inline bool run_matrix_load_without_barrier() {
  const Array<float> y(warp_size);
  run_block(warp_size, 0, [&] { matrix_load_without_barrier(y.data()); });
  return all_of(y, [](int) { return 1.0f; });
}

inline const std::vector<Case>& cases() {
  constexpr Expected order{Sign::numbers, Sign::numbers, Sign::sanitizer};
  constexpr Expected report{Sign::report, Sign::report, Sign::report};
  static const std::vector<Case> all = {
      {"missing_warp_barrier", order, neighbours_swapped<missing_warp_barrier>},
      // All lanes have written when the shuffle is done: only the missing order can be detected.
      {"shuffle_as_barrier",
       {Sign::none, Sign::none, Sign::sanitizer},
       neighbours_swapped<shuffle_as_barrier>},
      {"half_of_the_mask_comes", report, only_runs<half_of_the_mask_comes>},
      {"different_masks", report, only_runs<different_masks>},
      {"caller_not_in_mask", report, only_runs<caller_not_in_mask>},
      {"source_not_in_mask", report, only_runs<source_not_in_mask>},
      {"exited_lane_in_mask", report, only_runs<exited_lane_in_mask>},
      {"active_mask_as_agreement", report, only_runs<active_mask_as_agreement>},
      {"different_operations", report, only_runs<different_operations>},
      {"product_of_half_a_warp", report, runs_on_result<product_of_half_a_warp>},
      {"misaligned_matrix_row", report, runs_on_result<misaligned_matrix_row>},
      {"matrix_row_in_global_memory", report, run_matrix_row_in_global_memory},
      {"matrix_load_without_barrier", order, run_matrix_load_without_barrier},
  };
  return all;
}

}  // namespace tessera::testing::warp

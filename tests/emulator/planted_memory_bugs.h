// Planted bugs: memory out of bounds, not initialised, or shared without order; numbers out of
// range.
#pragma once

#include "emulator/planted_bug.h"

namespace tessera::testing::memory {

using namespace kernels::cuda;

constexpr int threads = 128;

__global__ inline void copy_elements(float* y, const float* x, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}

__global__ inline void one_element_too_many(float* y, const float* x, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = x[i];
}

__global__ inline void dynamic_part_overrun(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  row[threadIdx.x + 1] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = row[threadIdx.x + 1];
}

struct Row {
  float value[threads / 2];
};
__global__ inline void variable_overrun(float* y, const float* x) {
  float* row = shared_memory<Row>().value;
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = row[threadIdx.x];
}

// Writes the variable of one tag and reads that of another.
struct Forward;
struct Backward;
__global__ inline void variable_of_another_tag(float* y, const float* x) {
  shared_memory<Row, Forward>().value[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = shared_memory<Row, Backward>().value[threadIdx.x];
}

struct Large {
  float value[13 << 10];
};
__global__ inline void variables_too_large(float* y) {
  y[threadIdx.x] = shared_memory<Large>().value[threadIdx.x];
}

__global__ inline void uninitialised_sum(float* y, const float* x) {
  auto* sum = dynamic_shared_memory<float>();
  sum[threadIdx.x] += x[threadIdx.x];
  y[threadIdx.x] = sum[threadIdx.x];
}

__global__ inline void sum_without_atomic(float* y, const float* x) {
  y[threadIdx.x] += x[threadIdx.x];
}

__global__ inline void last_block_wins(float* y) {
  if (threadIdx.x == 0) *y = static_cast<float>(blockIdx.x);
}

// The last block adds up the results of the others, which no fence has ordered before the counter.
__global__ inline void missing_fence(float* partials, unsigned* counter, float* sum,
                                     const float* x) {
  if (threadIdx.x > 0) return;
  partials[blockIdx.x] = x[blockIdx.x];
  if (atomicInc(counter, gridDim.x - 1) + 1 < gridDim.x) return;
  float all = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) all += partials[i];
  *sum = all;
}

__global__ inline void atomic_and_plain_write(unsigned* count) {
  if (threadIdx.x == 0) *count = 0;
  atomicAdd(count, 1u);
}

__global__ inline void misaligned_vector(float* y, const float* x) {
  const auto* vectors = reinterpret_cast<const float4*>(x + 1);
  y[threadIdx.x] = vectors[threadIdx.x].x;
}

__global__ inline void overflowing_index(float* y, int columns) {
  const int index = (static_cast<int>(blockIdx.x) + 50000) * columns;
  y[threadIdx.x] = index > 0 ? 1.0f : 0.0f;
}

template <auto kernel>
bool copies(std::size_t shared_bytes) {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads);
  run_block(threads, shared_bytes, [&] { kernel(y.data(), x.data()); });
  return all_of(y, [&](int i) { return x[i]; });
}

inline bool run_one_element_too_many() {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads + 1);
  run_blocks(dim3(2), dim3(threads), 0, [&] { one_element_too_many(y.data(), x.data(), threads); });
  return true;
}

inline bool run_freed_memory() {
  const float* freed = Array<float>(threads).data();
  const Array<float> y(threads);
  run_block(threads, 0, [&] { copy_elements(y.data(), freed, threads); });
  return true;
}

inline bool run_variable_of_another_tag() {
  const auto x = Array<float>::counting(threads / 2);
  const Array<float> y(threads / 2);
  run_block(threads / 2, 0, [&] { variable_of_another_tag(y.data(), x.data()); });
  return all_of(y, [&](int i) { return x[i]; });
}

inline bool run_variables_too_large() {
  const Array<float> y(warp_size);
  run_block(warp_size, 0, [&] { variables_too_large(y.data()); });
  return true;
}

inline bool run_sum_without_atomic() {
  const auto x = Array<float>::counting(threads);
  const Array<float> y(threads);
  run_blocks(dim3(8), dim3(threads), 0, [&] { sum_without_atomic(y.data(), x.data()); });
  return all_of(y, [&](int i) { return 8 * x[i]; });
}

inline bool run_last_block_wins() {
  const Array<float> y(1);
  run_blocks(dim3(8), dim3(warp_size), 0, [&] { last_block_wins(y.data()); });
  return y[0] == 7;
}

inline bool run_missing_fence() {
  constexpr int blocks = 16;
  const auto x = Array<float>::counting(blocks);
  const Array<float> partials(blocks), sum(1);
  const Array<unsigned> counter(1);
  run_blocks(dim3(blocks), dim3(warp_size), 0,
             [&] { missing_fence(partials.data(), counter.data(), sum.data(), x.data()); });
  return sum[0] == blocks * (blocks - 1) / 2;
}

inline bool run_atomic_and_plain_write() {
  const Array<unsigned> count(1);
  run_block(threads, 0, [&] { atomic_and_plain_write(count.data()); });
  return count[0] == threads;
}

inline bool run_misaligned_vector() {
  const auto x = Array<float>::counting(4 * threads + 4);
  const Array<float> y(threads);
  run_block(threads, 0, [&] { misaligned_vector(y.data(), x.data()); });
  return all_of(y, [&](int i) { return x[4 * i + 1]; });
}

inline bool run_overflowing_index() {
  const Array<float> y(warp_size);
  run_block(warp_size, 0, [&] { overflowing_index(y.data(), 60000); });
  return true;
}

inline bool run_too_many_threads() {
  const Array<float> y(threads);
  run_block(2048, 0, [&] { copy_elements(y.data(), y.data(), 0); });
  return true;
}

inline bool run_too_much_shared_memory() {
  const Array<float> y(threads);
  run_block(threads, std::size_t{228} << 10, [&] { copy_elements(y.data(), y.data(), 0); });
  return true;
}

inline const std::vector<Case>& cases() {
  constexpr Expected bounds{Sign::report, Sign::sanitizer, Sign::none};
  constexpr Expected undefined{Sign::none, Sign::sanitizer, Sign::none};
  constexpr Expected race{Sign::none, Sign::none, Sign::sanitizer};
  constexpr Expected unwritten{Sign::numbers, Sign::numbers, Sign::numbers};
  constexpr Expected report{Sign::report, Sign::report, Sign::report};
  constexpr Expected refused{Sign::refused, Sign::refused, Sign::refused};
  static const std::vector<Case> all = {
      {"one_element_too_many", undefined, run_one_element_too_many},
      {"freed_memory", undefined, run_freed_memory},
      {"dynamic_part_overrun", bounds,
       [] { return copies<dynamic_part_overrun>(threads * sizeof(float)); }},
      {"variable_overrun", bounds, [] { return copies<variable_overrun>(0); }},
      {"variable_of_another_tag", unwritten, run_variable_of_another_tag},
      {"variables_too_large", report, run_variables_too_large},
      {"uninitialised_sum", unwritten,
       [] { return copies<uninitialised_sum>(threads * sizeof(float)); }},
      {"sum_without_atomic", race, run_sum_without_atomic},
      {"last_block_wins", {Sign::numbers, Sign::numbers, Sign::sanitizer}, run_last_block_wins},
      {"missing_fence", race, run_missing_fence},
      {"atomic_and_plain_write",
       {Sign::numbers, Sign::numbers, Sign::sanitizer},
       run_atomic_and_plain_write},
      {"misaligned_vector", undefined, run_misaligned_vector},
      {"overflowing_index", undefined, run_overflowing_index},
      {"too_many_threads", refused, run_too_many_threads},
      {"too_much_shared_memory", refused, run_too_much_shared_memory},
  };
  return all;
}

}  // namespace tessera::testing::memory

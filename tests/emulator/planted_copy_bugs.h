// Planted bugs: asynchronous copies.
#pragma once

#include "emulator/planted_bug.h"

namespace tessera::testing::copy {

using namespace kernels::cuda;

constexpr int threads = 64;
constexpr int elements = 4 * threads;  // each thread copies four

__global__ inline void read_before_wait(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + 4 * threadIdx.x, x + 4 * threadIdx.x);
  copy_async_commit();
  y[threadIdx.x] = row[4 * threadIdx.x];
  copy_async_wait<0>();
}

__global__ inline void never_waits(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + 4 * threadIdx.x, x + 4 * threadIdx.x);
  copy_async_commit();
  y[threadIdx.x] = 0;
}

// Waits for the group before the one that it reads.
__global__ inline void waits_for_older_group(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_commit();
  copy_async_16(row + 4 * threadIdx.x, x + 4 * threadIdx.x);
  copy_async_commit();
  copy_async_wait<1>();
  y[threadIdx.x] = row[4 * threadIdx.x];
  copy_async_wait<0>();
}

__global__ inline void waits_without_commit(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + 4 * threadIdx.x, x + 4 * threadIdx.x);
  copy_async_wait<0>();
  y[threadIdx.x] = row[4 * threadIdx.x];
}

// Waits for its own copies; those of its neighbour need a barrier.
__global__ inline void no_barrier_after_wait(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + 4 * threadIdx.x, x + 4 * threadIdx.x);
  copy_async_commit();
  copy_async_wait<0>();
  y[threadIdx.x] = row[(4 * threadIdx.x + 4) % (4 * blockDim.x)];
}

__global__ inline void misaligned_source(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + 4 * threadIdx.x, x + 4 * threadIdx.x + 1);
  copy_async_commit();
  copy_async_wait<0>();
  y[threadIdx.x] = row[4 * threadIdx.x];
}

__global__ inline void misaligned_destination(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + threadIdx.x, x + 4 * threadIdx.x);
  copy_async_commit();
  copy_async_wait<0>();
  y[threadIdx.x] = row[threadIdx.x];
}

__global__ inline void beyond_shared_memory(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + 4 * threadIdx.x + 4, x + 4 * threadIdx.x);
  copy_async_commit();
  copy_async_wait<0>();
  y[threadIdx.x] = row[4 * threadIdx.x];
}

__global__ inline void beyond_global_memory(float* y, const float* x) {
  auto* row = dynamic_shared_memory<float>();
  copy_async_16(row + 4 * threadIdx.x, x + 4 * threadIdx.x + 4);
  copy_async_commit();
  copy_async_wait<0>();
  y[threadIdx.x] = row[4 * threadIdx.x];
}

template <auto kernel>
bool every_fourth(int first) {
  const auto x = Array<float>::counting(elements);
  const Array<float> y(threads);
  run_block(threads, elements * sizeof(float), [&] { kernel(y.data(), x.data()); });
  return all_of(y, [&](int i) { return x[(4 * i + first) % elements]; });
}

inline const std::vector<Case>& cases() {
  constexpr Expected numbers{Sign::numbers, Sign::numbers, Sign::numbers};
  constexpr Expected order{Sign::numbers, Sign::numbers, Sign::sanitizer};
  constexpr Expected report{Sign::report, Sign::report, Sign::report};
  static const std::vector<Case> all = {
      {"read_before_wait", numbers, [] { return every_fourth<read_before_wait>(0); }},
      {"never_waits", report, [] { return every_fourth<never_waits>(0); }},
      {"waits_for_older_group", numbers, [] { return every_fourth<waits_for_older_group>(0); }},
      {"waits_without_commit", report, [] { return every_fourth<waits_without_commit>(0); }},
      {"no_barrier_after_wait", order, [] { return every_fourth<no_barrier_after_wait>(4); }},
      {"misaligned_source", report, [] { return every_fourth<misaligned_source>(1); }},
      {"misaligned_destination", report, [] { return every_fourth<misaligned_destination>(0); }},
      {"beyond_shared_memory", report, [] { return every_fourth<beyond_shared_memory>(0); }},
      {"beyond_global_memory",
       {Sign::none, Sign::report, Sign::none},
       [] { return every_fourth<beyond_global_memory>(4); }},
  };
  return all;
}

}  // namespace tessera::testing::copy

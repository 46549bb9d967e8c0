// Products of a few rows with a matrix, which is read once if the rows fit the caches.
#include <cstdint>

#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int gemv_warps = 8;
constexpr int gemv_threads = warp_size * gemv_warps;

template <class T>
__device__ __forceinline__ void store_product(Compute<T> sum, const T* bias, T* out,
                                              std::int64_t row, std::int64_t column,
                                              std::int64_t n) {
  if (bias != nullptr) sum += to_compute(bias[column]);
  out[row * n + column] = from_compute<T>(sum);
}

// out[row, j] = the sum over i of x[row, i] * w[j, i]: a warp processes a row of w, [n, k] of T.
// Bytes: reads w once per row of x, after the first time from the caches.
template <class T>
__global__ void __launch_bounds__(gemv_threads)
    gemv_rows_kernel(const T* x, const T* w, const T* bias, T* out, std::int64_t rows,
                     std::int64_t n, std::int64_t k) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const auto step = static_cast<std::int64_t>(gridDim.x) * gemv_warps;
  for (std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * gemv_warps + warp; column < n;
       column += step) {
    for (std::int64_t row = 0; row < rows; ++row) {
      Compute<T> sum = 0;
      for (std::int64_t i = lane; i < k; i += warp_size) {
        sum += to_compute(x[row * k + i]) * to_compute(w[column * k + i]);
      }
      sum = warp_reduce<Add>(sum);
      if (lane == 0) store_product(sum, bias, out, row, column, n);
    }
  }
}

template <class C>
struct GemvPartials {
  C value[gemv_warps][warp_size];
};

// The same for w of [k, n]: a block processes 32 columns, each of its warps every eighth row of w.
template <class T>
__global__ void __launch_bounds__(gemv_threads)
    gemv_columns_kernel(const T* x, const T* w, const T* bias, T* out, std::int64_t rows,
                        std::int64_t n, std::int64_t k) {
  using C = Compute<T>;
  auto& partials = shared_memory<GemvPartials<C>>();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp_size + lane;
  for (std::int64_t row = 0; row < rows; ++row) {
    C sum = 0;
    if (column < n) {
      for (std::int64_t i = warp; i < k; i += gemv_warps) {
        sum += to_compute(x[row * k + i]) * to_compute(w[i * n + column]);
      }
    }
    partials.value[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < n) {
      for (int other = 1; other < gemv_warps; ++other) sum += partials.value[other][lane];
      store_product(sum, bias, out, row, column, n);
    }
    __syncthreads();
  }
}

}  // namespace

void gemv(const Gemv& a, Queue queue) {
  for (const std::int64_t size : {a.rows, a.n, a.k}) {
    if (size < 0) misuse_of("gemv", "a size is negative", size);
  }
  for_floating(a.dtype, "gemv", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (a.rows == 0 || a.n == 0) return;
    const auto bytes = [](std::int64_t count) {
      return count * static_cast<std::int64_t>(sizeof(T));
    };
    const std::int64_t columns_of_block = a.transposed ? gemv_warps : warp_size;
    launch(context_of(queue),
           {"gemv",
            {a.rows, a.n, a.k},
            {reads(a.x, bytes(a.rows * a.k)), reads(a.w, bytes(a.n * a.k)),
             reads(a.bias, bytes(a.n)), writes(a.out, bytes(a.rows * a.n))}},
           {static_cast<unsigned>((a.n + columns_of_block - 1) / columns_of_block), gemv_threads},
           a.transposed ? gemv_rows_kernel<T> : gemv_columns_kernel<T>, static_cast<const T*>(a.x),
           static_cast<const T*>(a.w), static_cast<const T*>(a.bias), static_cast<T*>(a.out),
           a.rows, a.n, a.k);
  });
}

}  // namespace tessera::kernels::cuda

// Row-wise softmax, forward and backward: one block per row.
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/exponential_sum.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/row.h"

namespace tessera::kernels::cuda {
namespace {

// out[r,i] = e^(x[r,i] - max) / sum. x, out: [rows, dim] of T; out may equal x. Bytes: read x,
// write out; a row of up to a few hundred KiB comes from the caches the second time.
template <class T, int threads>
__global__ void __launch_bounds__(threads, resident_blocks<threads, 64, Compute<T>>)
    softmax_forward_kernel(const T* x, T* out, std::int64_t rows, std::int64_t dim) {
  using C = Compute<T>;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * dim;
    T* to = out + row * dim;
    const ExponentialSum<C> sum = exponential_sum<threads>(from, dim);
    const C inverse = C{1} / sum.sum;
    for_elements<threads>(
        dim,
        [&](std::int64_t i, auto count) {
          C values[decltype(count)::value];
          load_elements(from + i, values);
#pragma unroll
          for (C& value : values) value = exponential(value - sum.shift) * inverse;
          store_elements(to + i, values);
        },
        from, to);
  }
}

// dx = out * (dout - sum(dout * out)). All [rows, dim] of T; dx may equal dout. Bytes: read dout
// and out, write dx; the second read comes from the caches.
template <class T, int threads>
__global__ void __launch_bounds__(threads, resident_blocks<threads, 64, Compute<T>>)
    softmax_backward_kernel(const T* dout, const T* out, T* dx, std::int64_t rows,
                            std::int64_t dim) {
  using C = Compute<T>;
  constexpr std::int64_t width = Vector<T>::size;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* gradient = dout + row * dim;
    const T* probability = out + row * dim;
    T* to = dx + row * dim;
    C dot = 0;
    for (std::int64_t first = threadIdx.x * width; first < dim; first += threads * width) {
      const Vector<T> g = load_of_row(gradient, first, dim, C{0});
      const Vector<T> p = load_of_row(probability, first, dim, C{0});
#pragma unroll
      for (int k = 0; k < width; ++k) dot += to_compute(g.value[k]) * to_compute(p.value[k]);
    }
    dot = block_sum<threads>(dot);
    for_elements<threads>(
        dim,
        [&](std::int64_t i, auto count) {
          constexpr int size = decltype(count)::value;
          C g[size], p[size];
          load_elements(gradient + i, g);
          load_elements(probability + i, p);
#pragma unroll
          for (int k = 0; k < size; ++k) g[k] = p[k] * (g[k] - dot);
          store_elements(to + i, g);
        },
        gradient, probability, to);
  }
}

}  // namespace

void softmax_forward(const SoftmaxForward& a, Queue queue) {
  for_floating(a.dtype, "softmax_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_threads_of_row<T>(a.dim, [&](auto count) {
      constexpr int threads = decltype(count)::value;
      const auto bytes = a.rows * a.dim * static_cast<std::int64_t>(sizeof(T));
      launch(context_of(queue),
             {"softmax_forward", {a.rows, a.dim}, {reads(a.x, bytes), writes(a.out, bytes)}},
             {blocks_for(a.rows, 1), threads}, softmax_forward_kernel<T, threads>,
             static_cast<const T*>(a.x), static_cast<T*>(a.out), a.rows, a.dim);
    });
  });
}

void softmax_backward(const SoftmaxBackward& a, Queue queue) {
  for_floating(a.dtype, "softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    for_threads_of_row<T>(a.dim, [&](auto count) {
      constexpr int threads = decltype(count)::value;
      const auto bytes = a.rows * a.dim * static_cast<std::int64_t>(sizeof(T));
      launch(context_of(queue),
             {"softmax_backward",
              {a.rows, a.dim},
              {reads(a.dout, bytes), reads(a.out, bytes), writes(a.dx, bytes)}},
             {blocks_for(a.rows, 1), threads}, softmax_backward_kernel<T, threads>,
             static_cast<const T*>(a.dout), static_cast<const T*>(a.out), static_cast<T*>(a.dx),
             a.rows, a.dim);
    });
  });
}

}  // namespace tessera::kernels::cuda

// Pooling of sequences and normalisation of rows.
#include <cmath>

#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/types.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int pool_threads = 128;

template <class C>
__device__ __forceinline__ C pool_factor(PoolingMode mode, int length) {
  if (mode == PoolingMode::mean) return C{1} / static_cast<C>(length);
  return mode == PoolingMode::mean_sqrt_length ? C{1} / sqrt(static_cast<C>(length)) : C{1};
}

template <class C>
__device__ __forceinline__ bool is_larger_or_nan(C value, C largest) {
  return value > largest || value != value;
}

// A block processes 128 columns of one sequence; a thread sums its column in ascending order.
// Bytes: read x, write out.
template <class T>
__global__ void __launch_bounds__(pool_threads)
    pool_forward_kernel(PoolForward a, unsigned column_blocks) {
  using C = Compute<T>;
  const unsigned sequence = blockIdx.x / column_blocks;
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x % column_blocks) * pool_threads + threadIdx.x;
  if (column >= a.dim) return;
  const T* x = static_cast<const T*>(a.x) + a.starts[sequence] * a.dim + column;
  const int length = a.mode == PoolingMode::cls ? 1 : a.lengths[sequence];
  C value = to_compute(x[0]);
  for (int r = 1; r < length; ++r) {
    const C next = to_compute(x[r * a.dim]);
    if (a.mode == PoolingMode::max) {
      value = is_larger_or_nan(next, value) ? next : value;
    } else {
      value += next;
    }
  }
  if (a.mode != PoolingMode::max) value *= pool_factor<C>(a.mode, length);
  static_cast<C*>(a.out)[sequence * a.out_stride + column] = value;
}

// The gradient of every row, for the same columns. Bytes: read dout (and x for max), write dx.
template <class T>
__global__ void __launch_bounds__(pool_threads)
    pool_backward_kernel(PoolBackward a, unsigned column_blocks) {
  using C = Compute<T>;
  const unsigned sequence = blockIdx.x / column_blocks;
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.x % column_blocks) * pool_threads + threadIdx.x;
  if (column >= a.dim) return;
  const std::int64_t start = a.starts[sequence] * a.dim + column;
  T* dx = static_cast<T*>(a.dx) + start;
  const int length = a.lengths[sequence];
  C gradient = static_cast<const C*>(a.dout)[sequence * a.out_stride + column];
  int reached = a.mode == PoolingMode::cls ? 0 : -1;  // the only row with a gradient; -1: all rows
  if (a.mode == PoolingMode::max) {
    const T* x = static_cast<const T*>(a.x) + start;
    C largest = to_compute(x[0]);
    reached = 0;
    for (int r = 1; r < length && largest == largest; ++r) {
      const C next = to_compute(x[r * a.dim]);
      if (!is_larger_or_nan(next, largest)) continue;
      largest = next;
      reached = r;
    }
  } else {
    gradient *= pool_factor<C>(a.mode, length);
  }
  for (int r = 0; r < length; ++r) {
    C value = reached < 0 || reached == r ? gradient : C{0};
    if (a.accumulate) value += to_compute(dx[r * a.dim]);
    dx[r * a.dim] = from_compute<T>(value);
  }
}

template <class Arguments>
unsigned pool_column_blocks(const Arguments& a) {
  return static_cast<unsigned>((a.dim + pool_threads - 1) / pool_threads);
}
template <class Arguments>
Access reads_sequences(const std::int32_t* places, const Arguments& a) {
  return reads(places, a.sequences * static_cast<std::int64_t>(sizeof(std::int32_t)));
}
// Bytes of rows with distance `stride`; the last row has `dim` elements.
template <class C>
std::int64_t strided_bytes(std::int64_t rows, std::int64_t stride, std::int64_t dim) {
  return rows == 0 ? 0 : ((rows - 1) * stride + dim) * static_cast<std::int64_t>(sizeof(C));
}

constexpr int normalize_threads = 128;

// One block per row. Bytes: read x, write out.
template <class T>
__global__ void __launch_bounds__(normalize_threads) normalize_kernel(NormalizeRows a) {
  using C = Compute<T>;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.dim;
    T* out = static_cast<T*>(a.out) + row * a.dim;
    C sum = 0;
    for (std::int64_t i = threadIdx.x; i < a.dim; i += normalize_threads) {
      const C value = to_compute(x[i]);
      sum += value * value;
    }
    const C norm = sqrt(block_sum<normalize_threads>(sum));
    if (threadIdx.x == 0) static_cast<C*>(a.norms)[row] = norm;
    const C divisor = norm < static_cast<C>(a.eps) ? static_cast<C>(a.eps) : norm;
    for (std::int64_t i = threadIdx.x; i < a.dim; i += normalize_threads) {
      out[i] = from_compute<T>(to_compute(x[i]) / divisor);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(normalize_threads)
    normalize_backward_kernel(NormalizeRowsBackward a) {
  using C = Compute<T>;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.dim;
    const T* dout = static_cast<const T*>(a.dout) + row * a.dim;
    T* dx = static_cast<T*>(a.dx) + row * a.dim;
    const C norm = static_cast<const C*>(a.norms)[row];
    const bool is_small = norm < static_cast<C>(a.eps);
    const C inverse = C{1} / (is_small ? static_cast<C>(a.eps) : norm);
    C along = 0;
    if (!is_small) {
      for (std::int64_t i = threadIdx.x; i < a.dim; i += normalize_threads) {
        along += to_compute(x[i]) * to_compute(dout[i]);
      }
      along = inverse * inverse * block_sum<normalize_threads>(along);
    }
    for (std::int64_t i = threadIdx.x; i < a.dim; i += normalize_threads) {
      dx[i] = from_compute<T>((to_compute(dout[i]) - along * to_compute(x[i])) * inverse);
    }
  }
}

}  // namespace

void pool_forward(const PoolForward& a, Queue queue) {
  for_floating(a.dtype, "pool_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const unsigned columns = pool_column_blocks(a);
    launch(context_of(queue),
           {"pool_forward",
            {a.sequences, a.rows, a.dim},
            {reads(a.x, a.rows * a.dim * static_cast<std::int64_t>(sizeof(T))),
             reads_sequences(a.starts, a), reads_sequences(a.lengths, a),
             writes(a.out, strided_bytes<C>(a.sequences, a.out_stride, a.dim))}},
           {static_cast<unsigned>(a.sequences) * columns, pool_threads}, pool_forward_kernel<T>, a,
           columns);
  });
}

void pool_backward(const PoolBackward& a, Queue queue) {
  for_floating(a.dtype, "pool_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const unsigned columns = pool_column_blocks(a);
    const std::int64_t bytes = a.rows * a.dim * static_cast<std::int64_t>(sizeof(T));
    launch(context_of(queue),
           {"pool_backward",
            {a.sequences, a.rows, a.dim},
            {reads(a.dout, strided_bytes<C>(a.sequences, a.out_stride, a.dim)),
             reads(a.mode == PoolingMode::max ? a.x : nullptr, bytes), reads_sequences(a.starts, a),
             reads_sequences(a.lengths, a), reads(a.accumulate ? a.dx : nullptr, bytes),
             writes(a.dx, bytes)}},
           {static_cast<unsigned>(a.sequences) * columns, pool_threads}, pool_backward_kernel<T>, a,
           columns);
  });
}

void normalize_rows(const NormalizeRows& a, Queue queue) {
  for_floating(a.dtype, "normalize_rows", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t bytes = a.rows * a.dim * static_cast<std::int64_t>(sizeof(T));
    launch(context_of(queue),
           {"normalize_rows",
            {a.rows, a.dim},
            {reads(a.x, bytes), writes(a.out, bytes),
             writes(a.norms, a.rows * static_cast<std::int64_t>(sizeof(Compute<T>)))}},
           {blocks_for(a.rows, 1), normalize_threads}, normalize_kernel<T>, a);
  });
}

void normalize_rows_backward(const NormalizeRowsBackward& a, Queue queue) {
  for_floating(a.dtype, "normalize_rows_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t bytes = a.rows * a.dim * static_cast<std::int64_t>(sizeof(T));
    launch(context_of(queue),
           {"normalize_rows_backward",
            {a.rows, a.dim},
            {reads(a.dout, bytes), reads(a.x, bytes),
             reads(a.norms, a.rows * static_cast<std::int64_t>(sizeof(Compute<T>))),
             writes(a.dx, bytes)}},
           {blocks_for(a.rows, 1), normalize_threads}, normalize_backward_kernel<T>, a);
  });
}

}  // namespace tessera::kernels::cuda

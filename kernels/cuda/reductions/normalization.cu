// LayerNorm and RMSNorm forward: one block per row, which it holds in registers.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/row_share.h"

namespace tessera::kernels::cuda {
namespace {

// Loads the norm's input: x, or x + residual rounded to T, which is stored in `sum`.
template <class T>
__device__ __forceinline__ Vector<T> load_input(const GroupAccess<T>& access, const T* x,
                                                const T* residual, T* sum, std::int64_t first) {
  Vector<T> input = access.load(x, first);
  if (residual == nullptr) return input;
  const Vector<T> addend = access.load(residual, first);
#pragma unroll
  for (int k = 0; k < Vector<T>::size; ++k) {
    input.value[k] = from_compute<T>(to_compute(input.value[k]) + to_compute(addend.value[k]));
  }
  access.store(sum, first, input);
  return input;
}

// out = (value - mean) * rstd * gamma + beta for one group.
template <class T>
__device__ __forceinline__ Vector<T> normalized(const GroupAccess<T>& access,
                                                const Vector<T>& input, const T* gamma,
                                                const T* beta, std::int64_t first, Compute<T> mean,
                                                Compute<T> rstd) {
  using C = Compute<T>;
  const Vector<T> scale = gamma == nullptr ? Vector<T>{} : access.load(gamma, first);
  const Vector<T> shift = beta == nullptr ? Vector<T>{} : access.load(beta, first);
  Vector<T> result;
#pragma unroll
  for (int k = 0; k < Vector<T>::size; ++k) {
    C value = (to_compute(input.value[k]) - mean) * rstd;
    if (gamma != nullptr) value *= to_compute(scale.value[k]);
    if (beta != nullptr) value += to_compute(shift.value[k]);
    result.value[k] = from_compute<T>(value);
  }
  return result;
}

// Shapes and dtypes as in NormForward: x, residual, sum, out [rows, dim] of T, gamma and beta [dim]
// of T, mean and rstd [rows] of Compute<T>. Bytes: read x and residual, write sum and out.
template <class T, int threads, bool vectors>
__global__ void __launch_bounds__(
    threads* rows_of_block<threads>,
    resident_blocks<threads * rows_of_block<threads>, vectors && sizeof(T) < 8 ? 72 : 96>)
    norm_forward_kernel(NormForward a, GroupAccess<T> access) {
  using C = Compute<T>;
  if constexpr (vectors) access.vectors = true;  // a constant: the other way takes registers
  constexpr int width = Vector<T>::size;
  const auto* gamma = static_cast<const T*>(a.gamma);
  const auto* beta = static_cast<const T*>(a.beta);
  const auto n = static_cast<C>(a.dim);
  constexpr int rows = rows_of_block<threads>;
  const std::int64_t first_row = rows == 1 ? blockIdx.x : blockIdx.x * rows + threadIdx.y;
  for (std::int64_t row = first_row; row < a.rows; row += gridDim.x * rows) {
    const std::int64_t start = row * a.dim;
    const T* x = static_cast<const T*>(a.x) + start;
    const bool adds = a.residual != nullptr;
    const T* residual = adds ? static_cast<const T*>(a.residual) + start : nullptr;
    T* sum = adds ? static_cast<T*>(a.sum) + start : nullptr;
    const T* input = adds ? sum : x;
    T* out = static_cast<T*>(a.out) + start;
    Vector<T> kept[kept_groups] = {};
    const auto group = [&](int slot, std::int64_t first) {
      return slot < kept_groups ? kept[slot % kept_groups] : access.load(input, first);
    };

    C total = 0;  // of the values, or of their squares
    for_groups<threads, T>(a.dim, [&](int slot, std::int64_t first) {
      const Vector<T> values = load_input(access, x, residual, sum, first);
      if (slot < kept_groups) kept[slot % kept_groups] = values;
#pragma unroll
      for (int k = 0; k < width; ++k) {
        const C value = to_compute(values.value[k]);
        total += a.rms ? value * value : value;
      }
    });
    total = block_sum<threads>(total);
    C mean = 0;
    C variance = total / n;
    if (!a.rms) {
      mean = variance;
      C squares = 0;
      for_groups<threads, T>(a.dim, [&](int slot, std::int64_t first) {
        const Vector<T> values = group(slot, first);
#pragma unroll
        for (int k = 0; k < width; ++k) {
          const C deviation = to_compute(values.value[k]) - mean;
          if (first + k < a.dim) squares += deviation * deviation;
        }
      });
      variance = block_sum<threads>(squares) / n;
      if (threadIdx.x == 0) static_cast<C*>(a.mean)[row] = mean;
    }
    const C rstd = C{1} / square_root(variance + static_cast<C>(a.eps));
    if (threadIdx.x == 0) static_cast<C*>(a.rstd)[row] = rstd;
    for_groups<threads, T>(a.dim, [&](int slot, std::int64_t first) {
      access.store(out, first,
                   normalized(access, group(slot, first), gamma, beta, first, mean, rstd));
    });
  }
}

}  // namespace

void norm_forward(const NormForward& a, Queue queue) {
  if (a.rms && a.beta != nullptr) misuse_of("norm_forward", "RMSNorm takes no beta", a.dim);
  if ((a.residual == nullptr) != (a.sum == nullptr)) {
    misuse_of("norm_forward", "give both residual and sum, or neither", a.dim);
  }
  for_floating(a.dtype, "norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t row_bytes = a.dim * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t bytes = a.rows * row_bytes;
    const auto statistics = a.rows * static_cast<std::int64_t>(sizeof(Compute<T>));
    const auto access = group_access<T>(a.dim, a.x, a.residual, a.gamma, a.beta, a.sum, a.out);
    for_threads_of_row<T>(a.dim, [&](auto count) {
      constexpr int threads = decltype(count)::value;
      launch(context_of(queue),
             {"norm_forward",
              {a.rows, a.dim},
              {reads(a.x, bytes), reads(a.residual, bytes), reads(a.gamma, row_bytes),
               reads(a.beta, row_bytes), writes(a.sum, bytes), writes(a.out, bytes),
               writes(a.rms ? nullptr : a.mean, statistics), writes(a.rstd, statistics)}},
             {blocks_for(a.rows, rows_of_block<threads>), dim3(threads, rows_of_block<threads>)},
             access.vectors ? norm_forward_kernel<T, threads, true>
                            : norm_forward_kernel<T, threads, false>,
             a, access);
    });
  });
}

}  // namespace tessera::kernels::cuda

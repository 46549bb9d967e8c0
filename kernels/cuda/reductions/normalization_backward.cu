// LayerNorm and RMSNorm backward: dgamma and dbeta as sums over rows, then dx with one block per
// row. The sums come first, because dx may overwrite dout.
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/row_share.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/reductions/column_sums.h"

namespace tessera::kernels::cuda {
namespace {

// The terms of dgamma, dout * (x - mean) * rstd, and of dbeta, dout. RMSNorm has only the first.
template <class T, int outputs>
struct ParameterTerms {
  using C = Compute<T>;
  GroupAccess<T> access;
  const T* dout;
  const T* x;
  const C* mean;  // null for RMS
  const C* rstd;

  __device__ __forceinline__ void add(std::int64_t row, std::int64_t first,
                                      C (&sums)[outputs][Vector<T>::size]) const {
    const std::int64_t start = row * access.n;
    const Vector<T> gradients = access.load(dout + start, first);
    const Vector<T> values = access.load(x + start, first);
    const C center = mean == nullptr ? C{0} : mean[row];
    const C scale = rstd[row];
#pragma unroll
    for (int k = 0; k < Vector<T>::size; ++k) {
      const C gradient = to_compute(gradients.value[k]);
      sums[0][k] += gradient * ((to_compute(values.value[k]) - center) * scale);
      if constexpr (outputs == 2) sums[1][k] += gradient;
    }
  }
};

// dx = rstd * (inner - mean(inner) - normalized * mean(inner * normalized)) + dresidual, where
// inner is dout * gamma and mean(inner) is left out for RMS. Shapes and dtypes as in NormBackward.
// Bytes: read dout, x and dresidual, write dx.
template <class T, int threads, bool vectors>
__global__ void __launch_bounds__(threads* rows_of_block<threads>,
                                  resident_blocks<threads * rows_of_block<threads>, 128>)
    norm_backward_kernel(NormBackward a, GroupAccess<T> access) {
  using C = Compute<T>;
  if constexpr (vectors) access.vectors = true;  // a constant: the other way takes registers
  constexpr int width = Vector<T>::size;
  const auto* gamma = static_cast<const T*>(a.gamma);
  const auto n = static_cast<C>(a.dim);
  constexpr int rows = rows_of_block<threads>;
  const std::int64_t first_row = rows == 1 ? blockIdx.x : blockIdx.x * rows + threadIdx.y;
  for (std::int64_t row = first_row; row < a.rows; row += gridDim.x * rows) {
    const std::int64_t start = row * a.dim;
    const T* dout = static_cast<const T*>(a.dout) + start;
    const T* x = static_cast<const T*>(a.x) + start;
    const auto* dresidual = static_cast<const T*>(a.dresidual);
    T* dx = static_cast<T*>(a.dx) + start;
    const C mean = a.rms ? C{0} : static_cast<const C*>(a.mean)[row];
    const C rstd = static_cast<const C*>(a.rstd)[row];
    Vector<T> kept_dout[kept_groups];
    Vector<T> kept_x[kept_groups];

    C total = 0;
    C projection = 0;
    for_groups<threads, T>(a.dim, [&](int slot, std::int64_t first) {
      const Vector<T> gradients = access.load(dout, first);
      const Vector<T> values = access.load(x, first);
      if (slot < kept_groups) {
        kept_dout[slot % kept_groups] = gradients;
        kept_x[slot % kept_groups] = values;
      }
      const Vector<T> scale = gamma == nullptr ? Vector<T>{} : access.load(gamma, first);
#pragma unroll
      for (int k = 0; k < width; ++k) {
        C inner = to_compute(gradients.value[k]);
        if (gamma != nullptr) inner *= to_compute(scale.value[k]);
        total += inner;
        projection += inner * ((to_compute(values.value[k]) - mean) * rstd);
      }
    });
    const C mean_inner = a.rms ? C{0} : block_sum<threads>(total) / n;
    const C mean_projection = block_sum<threads>(projection) / n;

    for_groups<threads, T>(a.dim, [&](int slot, std::int64_t first) {
      const bool kept = slot < kept_groups;
      const Vector<T> gradients = kept ? kept_dout[slot % kept_groups] : access.load(dout, first);
      const Vector<T> values = kept ? kept_x[slot % kept_groups] : access.load(x, first);
      const Vector<T> scale = gamma == nullptr ? Vector<T>{} : access.load(gamma, first);
      const Vector<T> addend =
          dresidual == nullptr ? Vector<T>{} : access.load(dresidual + start, first);
      Vector<T> result;
#pragma unroll
      for (int k = 0; k < width; ++k) {
        C inner = to_compute(gradients.value[k]);
        if (gamma != nullptr) inner *= to_compute(scale.value[k]);
        const C normalized = (to_compute(values.value[k]) - mean) * rstd;
        C gradient = rstd * ((inner - mean_inner) - normalized * mean_projection);
        if (dresidual != nullptr) gradient += to_compute(addend.value[k]);
        result.value[k] = from_compute<T>(gradient);
      }
      access.store(dx, first, result);
    });
  }
}

// Computes dgamma and, with two outputs, dbeta.
template <class T, int outputs>
void sum_parameter_gradients(const NormBackward& a, Context& context) {
  using C = Compute<T>;
  const RowChunks chunks(a.rows);
  const std::int64_t partials_of_output = chunks.count * a.dim;
  ScratchArrays scratch;
  const auto partials = scratch.add<C>(outputs * partials_of_output);
  scratch.take(context);
  const auto* mean = a.rms ? nullptr : static_cast<const C*>(a.mean);
  const ParameterTerms<T, outputs> terms{group_access<T>(a.dim, a.dout, a.x),
                                         static_cast<const T*>(a.dout), static_cast<const T*>(a.x),
                                         mean, static_cast<const C*>(a.rstd)};
  const std::int64_t bytes = a.rows * a.dim * static_cast<std::int64_t>(sizeof(T));
  const auto statistics = a.rows * static_cast<std::int64_t>(sizeof(C));
  launch_column_sums<T, outputs>(
      context, "norm_backward sums", terms, chunks, a.dim, scratch[partials],
      {reads(a.dout, bytes), reads(a.x, bytes), reads(mean, statistics), reads(a.rstd, statistics),
       writes(scratch[partials],
              outputs * partials_of_output * static_cast<std::int64_t>(sizeof(C)))});
  if (a.dgamma != nullptr) {
    launch_combine_chunks(context, "norm_backward dgamma", scratch[partials], chunks.count, a.dim,
                          static_cast<T*>(a.dgamma), a.accumulate_gamma);
  }
  if (a.dbeta != nullptr) {
    launch_combine_chunks(context, "norm_backward dbeta", scratch[partials] + partials_of_output,
                          chunks.count, a.dim, static_cast<T*>(a.dbeta), a.accumulate_beta);
  }
}

template <class T>
void input_gradient(const NormBackward& a, Context& context) {
  const std::int64_t row_bytes = a.dim * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t bytes = a.rows * row_bytes;
  const auto statistics = a.rows * static_cast<std::int64_t>(sizeof(Compute<T>));
  const auto access = group_access<T>(a.dim, a.dout, a.dresidual, a.x, a.gamma, a.dx);
  for_threads_of_row<T>(a.dim, [&](auto count) {
    constexpr int threads = decltype(count)::value;
    launch(context,
           {"norm_backward",
            {a.rows, a.dim},
            {reads(a.dout, bytes), reads(a.dresidual, bytes), reads(a.x, bytes),
             reads(a.gamma, row_bytes), reads(a.rms ? nullptr : a.mean, statistics),
             reads(a.rstd, statistics), writes(a.dx, bytes)}},
           {blocks_for(a.rows, rows_of_block<threads>), dim3(threads, rows_of_block<threads>)},
           access.vectors ? norm_backward_kernel<T, threads, true>
                          : norm_backward_kernel<T, threads, false>,
           a, access);
  });
}

}  // namespace

void norm_backward(const NormBackward& a, Queue queue) {
  if (a.rms && a.dbeta != nullptr) misuse_of("norm_backward", "RMSNorm has no beta", a.dim);
  Context& context = context_of(queue);
  for_floating(a.dtype, "norm_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (a.dbeta != nullptr) {
      sum_parameter_gradients<T, 2>(a, context);
    } else if (a.dgamma != nullptr) {
      sum_parameter_gradients<T, 1>(a, context);
    }
    input_gradient<T>(a, context);
  });
}

}  // namespace tessera::kernels::cuda

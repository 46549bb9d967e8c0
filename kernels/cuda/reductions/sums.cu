// SumRows and SumAll: sums over fixed chunks, combined in a fixed order.
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/device/row.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/reductions/column_sums.h"

namespace tessera::kernels::cuda {
namespace {

// An array as rows of `columns` elements; the last row may be short.
template <class T>
struct RowsOfArray {
  const T* x;
  std::int64_t elements;
  std::int64_t columns;

  __device__ __forceinline__ void add(std::int64_t row, std::int64_t first,
                                      Compute<T> (&sums)[1][Vector<T>::size]) const {
    const std::int64_t start = row * columns;
    const std::int64_t left = elements - start;
    const Vector<T> vector =
        load_of_row(x + start, first, left < columns ? left : columns, Compute<T>{0});
#pragma unroll
    for (int k = 0; k < Vector<T>::size; ++k) sums[0][k] += to_compute(vector.value[k]);
  }
};

// Short rows would leave most lanes idle, so several are summed side by side as one row of at least
// 256 columns, then folded.
template <class T>
void sum_rows_of(const SumRows& a, Context& context) {
  using C = Compute<T>;
  const std::int64_t fold = a.inner < 128 ? (256 + a.inner - 1) / a.inner : 1;
  const std::int64_t columns = a.inner * fold;
  const std::int64_t elements = a.rows * a.inner;
  const RowChunks chunks((a.rows + fold - 1) / fold);
  ScratchArrays scratch;
  const auto partials = scratch.add<C>(chunks.count * columns);
  const auto folded = scratch.add<C>(fold > 1 ? columns : 0);
  scratch.take(context);
  const RowsOfArray<T> terms{static_cast<const T*>(a.x), elements, columns};
  const auto partials_bytes = chunks.count * columns * static_cast<std::int64_t>(sizeof(C));
  launch_column_sums<T, 1>(context, "sum_rows", terms, chunks, columns, scratch[partials],
                           {reads(a.x, elements * static_cast<std::int64_t>(sizeof(T))),
                            writes(scratch[partials], partials_bytes)});
  T* out = static_cast<T*>(a.out);
  if (fold == 1) {
    launch_combine_chunks(context, "sum_rows combine", scratch[partials], chunks.count, columns,
                          out, a.accumulate);
    return;
  }
  launch_combine_chunks<C>(context, "sum_rows combine", scratch[partials], chunks.count, columns,
                           scratch[folded], false);
  launch_combine_chunks(context, "sum_rows fold", scratch[folded], fold, a.inner, out,
                        a.accumulate);
}

constexpr int sum_threads = 256;
constexpr std::int64_t sum_chunk = 4096;

// partials[b] = the sum of elements [b * sum_chunk, (b + 1) * sum_chunk) of x, in Compute<T>.
// Bytes: read x.
template <class T>
__global__ void __launch_bounds__(sum_threads, 4)
    sum_chunks_kernel(const T* x, std::int64_t n, double* partials) {
  using C = Compute<T>;
  constexpr std::int64_t width = Vector<T>::size;
  const std::int64_t chunks = (n + sum_chunk - 1) / sum_chunk;
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const std::int64_t start = chunk * sum_chunk;
    const std::int64_t end = start + sum_chunk < n ? start + sum_chunk : n;
    C sum = 0;
    for (std::int64_t first = start + threadIdx.x * width; first < end;
         first += sum_threads * width) {
      const Vector<T> vector = load_of_row(x, first, n, C{0});
#pragma unroll
      for (int k = 0; k < width; ++k) sum += to_compute(vector.value[k]);
    }
    sum = block_sum<sum_threads>(sum);
    if (threadIdx.x == 0) partials[chunk] = static_cast<double>(sum);
  }
}

// *out = scale * the sum of the partials, by one block. Bytes: read the partials.
template <class T>
__global__ void __launch_bounds__(sum_threads)
    sum_partials_kernel(const double* partials, std::int64_t count, double scale, T* out) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += sum_threads) sum += partials[i];
  sum = block_sum<sum_threads>(sum);
  if (threadIdx.x == 0) *out = round_once<T>(sum * scale);
}

template <class T>
void sum_all_of(const SumAll& a, Context& context) {
  const std::int64_t chunks = (a.n + sum_chunk - 1) / sum_chunk;
  const auto partials_bytes = chunks * static_cast<std::int64_t>(sizeof(double));
  auto* partials = static_cast<double*>(context.scratch(static_cast<std::size_t>(partials_bytes)));
  launch(
      context,
      {"sum_all",
       {a.n},
       {reads(a.x, a.n * static_cast<std::int64_t>(sizeof(T))), writes(partials, partials_bytes)}},
      {blocks_for(chunks, 1), sum_threads}, sum_chunks_kernel<T>, static_cast<const T*>(a.x), a.n,
      partials);
  launch(context,
         {"sum_all combine", {chunks}, {reads(partials, partials_bytes), writes(a.out, sizeof(T))}},
         {1, sum_threads}, sum_partials_kernel<T>, partials, chunks, a.scale,
         static_cast<T*>(a.out));
}

}  // namespace

void sum_rows(const SumRows& a, Queue queue) {
  if (a.inner == 0) return;
  for_floating(a.dtype, "sum_rows",
               [&](auto tag) { sum_rows_of<typename decltype(tag)::type>(a, context_of(queue)); });
}

void sum_all(const SumAll& a, Queue queue) {
  for_floating(a.dtype, "sum_all",
               [&](auto tag) { sum_all_of<typename decltype(tag)::type>(a, context_of(queue)); });
}

}  // namespace tessera::kernels::cuda

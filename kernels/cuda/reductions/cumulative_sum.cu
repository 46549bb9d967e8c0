// Running sums along the middle of three dimensions: a block for each row, or a thread for each
// column.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/reductions/running_sum.h"

namespace tessera::kernels::cuda {
namespace {

// inner == 1: a block goes along a row in pieces of its threads. Bytes: read and write each element
// once.
template <class T>
__global__ void __launch_bounds__(running_threads)
    cumulative_rows_kernel(const T* x, T* out, std::int64_t rows, std::int64_t length,
                           bool reverse) {
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    double before = 0;
    for (std::int64_t start = 0; start < length; start += running_threads) {
      const std::int64_t step = start + thread;
      const std::int64_t at = row * length + (reverse ? length - 1 - step : step);
      const double value = step < length ? static_cast<double>(to_compute(x[at])) : 0.0;
      const RunningSum sum = running_sum_of_block(value);
      if (step < length) out[at] = round_once<T>(before + sum.here);
      before += sum.whole;
    }
  }
}

// inner > 1: a thread goes down a column. Bytes: read and write each element once.
template <class T>
__global__ void __launch_bounds__(running_threads)
    cumulative_columns_kernel(const T* x, T* out, std::int64_t outer, std::int64_t length,
                              std::int64_t inner, bool reverse) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * running_threads + threadIdx.x;
  for (; i < outer * inner; i += static_cast<std::int64_t>(gridDim.x) * running_threads) {
    const Quotient where = divide(i, inner);
    double sum = 0;
    for (std::int64_t step = 0; step < length; ++step) {
      const std::int64_t place = reverse ? length - 1 - step : step;
      const std::int64_t at = (where.quotient * length + place) * inner + where.remainder;
      sum += static_cast<double>(to_compute(x[at]));
      out[at] = round_once<T>(sum);
    }
  }
}

}  // namespace

void cumulative_sum(const CumulativeSum& a, Queue queue) {
  for_floating(a.dtype, "cumulative_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    Context& context = context_of(queue);
    const auto* x = static_cast<const T*>(a.x);
    auto* out = static_cast<T*>(a.out);
    const std::int64_t bytes = a.outer * a.length * a.inner * static_cast<std::int64_t>(sizeof(T));
    const LaunchInfo info = {
        "cumulative_sum", {a.outer, a.length, a.inner}, {reads(x, bytes), writes(out, bytes)}};
    if (bytes == 0) return;
    if (a.inner == 1) {
      launch(context, info, {blocks_for(a.outer, 1), running_threads}, cumulative_rows_kernel<T>, x,
             out, a.outer, a.length, a.reverse);
    } else {
      launch(context, info, {blocks_for(a.outer * a.inner, running_threads), running_threads},
             cumulative_columns_kernel<T>, x, out, a.outer, a.length, a.inner, a.reverse);
    }
  });
}

}  // namespace tessera::kernels::cuda

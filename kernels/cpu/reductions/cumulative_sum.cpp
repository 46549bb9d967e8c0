// Running sums along the middle of three dimensions. Each depends on the one before, so there is
// nothing for vectors to do along a row; neighbouring columns keep their sums in a block.
#include <algorithm>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/from_double.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

template <class T>
double widened_element(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<double>(to_float(value));
  }
}

constexpr std::int64_t running_columns = 64;

template <class T>
void running_sums(const CumulativeSum& a, std::int64_t outer, std::int64_t first) {
  const std::int64_t n = std::min(running_columns, a.inner - first);
  const std::int64_t start = outer * a.length * a.inner + first;
  const T* x = static_cast<const T*>(a.x) + start;
  T* out = static_cast<T*>(a.out) + start;
  double sums[running_columns] = {};
  for (std::int64_t step = 0; step < a.length; ++step) {
    const std::int64_t at = (a.reverse ? a.length - 1 - step : step) * a.inner;
    for (std::int64_t i = 0; i < n; ++i) {
      sums[i] += widened_element(x[at + i]);
      out[at + i] = cpu::from_double<T>(sums[i]);
    }
  }
}

}  // namespace

void cpu::cumulative_sum(const CumulativeSum& a, Queue) {
  cpu::for_floating(a.dtype, "cumulative_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t blocks = (a.inner + running_columns - 1) / running_columns;
    const std::int64_t work = a.length * std::min(running_columns, a.inner);
    parallel_for(0, a.outer * blocks, cpu::rows_grain(work),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i)
                     running_sums<T>(a, i / blocks, i % blocks * running_columns);
                 });
  });
}

}  // namespace tessera::kernels

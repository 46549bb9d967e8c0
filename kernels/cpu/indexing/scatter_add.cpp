// Sums at ids, in the order of the ids.
#include <algorithm>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/indexing/ids.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

constexpr std::int64_t scatter_columns = 64;  // that a thread processes together

// Adds the block of columns [first, first + n) of one outer index to sums[entry * stride + column].
template <class T, class C, class Id>
void add_columns(const ScatterAdd& a, const Id* ids, std::int64_t outer, std::int64_t first,
                 std::int64_t n, C* sums, std::int64_t stride) {
  const AxisIds& at = a.at;
  for (std::int64_t l = 0; l < at.length; ++l) {
    const std::int64_t row = (outer * at.length + l) * at.inner + first;
    const T* x = static_cast<const T*>(a.x) + row;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t id = at.shared ? ids[l] : ids[row + i];
      if constexpr (std::is_same_v<T, C>) {
        sums[id * stride + i] += x[i];
      } else {
        sums[id * stride + i] += to_float(x[i]);
      }
    }
  }
}

template <class T, class Id>
void scatter_block(const ScatterAdd& a, const Id* ids, std::int64_t outer, std::int64_t first) {
  const AxisIds& at = a.at;
  const std::int64_t n = std::min(scatter_columns, at.inner - first);
  T* out = static_cast<T*>(a.out) + outer * at.entries * at.inner + first;
  if constexpr (sizeof(T) >= 4) {
    add_columns<T>(a, ids, outer, first, n, out, at.inner);
  } else {  // 16-bit sums in fp32, rounded at the end
    std::vector<float> sums(static_cast<std::size_t>(at.entries * n));
    for (std::int64_t e = 0; e < at.entries; ++e) {
      for (std::int64_t i = 0; i < n; ++i)
        sums[static_cast<std::size_t>(e * n + i)] = to_float(out[e * at.inner + i]);
    }
    add_columns<T>(a, ids, outer, first, n, sums.data(), n);
    for (std::int64_t e = 0; e < at.entries; ++e) {
      for (std::int64_t i = 0; i < n; ++i) {
        out[e * at.inner + i] = from_float<T>(sums[static_cast<std::size_t>(e * n + i)]);
      }
    }
  }
}

}  // namespace

void cpu::scatter_add(const ScatterAdd& a, Queue) {
  with_axis_ids("scatter_add", a.at, [&](const auto* ids) {
    cpu::for_floating(a.dtype, "scatter_add", [&](auto tag) {
      const std::int64_t blocks = (a.at.inner + scatter_columns - 1) / scatter_columns;
      const std::int64_t work =
          (a.at.length + a.at.entries) * std::min(scatter_columns, a.at.inner);
      parallel_for(0, a.at.outer * blocks, cpu::rows_grain(work),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t i = first; i < last; ++i) {
                       scatter_block<typename decltype(tag)::type>(a, ids, i / blocks,
                                                                   i % blocks * scatter_columns);
                     }
                   });
    });
  });
}

}  // namespace tessera::kernels

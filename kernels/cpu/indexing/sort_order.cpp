// The order of sorted rows: keys and positions are sorted together, which makes the sort stable.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/keys/sort_key.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

void sort_row(const double* x, std::int64_t n, bool descending, std::int64_t* order) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> items(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t key = sort_key(x[i]);
    items[static_cast<std::size_t>(i)] = {descending ? ~key : key, i};
  }
  std::sort(items.begin(), items.end());
  for (std::int64_t i = 0; i < n; ++i) order[i] = items[static_cast<std::size_t>(i)].second;
}

// The key is the upper half of a word, the position the lower half.
template <class T>
void sort_row(const T* x, std::int64_t n, bool descending, std::int64_t* order) {
  std::vector<std::uint64_t> items(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t key = sort_key(to_float(x[i]));
    items[static_cast<std::size_t>(i)] =
        static_cast<std::uint64_t>(descending ? ~key : key) << 32 | static_cast<std::uint64_t>(i);
  }
  std::sort(items.begin(), items.end());
  for (std::int64_t i = 0; i < n; ++i) {
    order[i] = static_cast<std::int64_t>(items[static_cast<std::size_t>(i)] & 0xffffffffu);
  }
}

}  // namespace

void cpu::sort_order(const SortOrder& a, Queue) {
  TESSERA_REQUIRE(a.length < std::int64_t{1} << 31,
                  "sort_order: rows of {} elements; at most 2^31 - 1", a.length);
  cpu::for_floating(a.dtype, "sort_order", [&](auto tag) {
    const auto* x = static_cast<const typename decltype(tag)::type*>(a.x);
    parallel_for(0, a.rows, cpu::rows_grain(16 * a.length),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t row = first; row < last; ++row) {
                     sort_row(x + row * a.length, a.length, a.descending, a.order + row * a.length);
                   }
                 });
  });
}

}  // namespace tessera::kernels

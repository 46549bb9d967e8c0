// Reads at ids.
#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "kernels/cpu/indexing/ids.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

// T has the size of an element.
template <class T, class Id>
void gather_rows(const Gather& a, const Id* ids) {
  const AxisIds& at = a.at;
  const auto* x = static_cast<const T*>(a.x);
  auto* out = static_cast<T*>(a.out);
  parallel_for(0, at.outer * at.length, cpu::rows_grain(at.inner),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t row = first; row < last; ++row) {
                   const T* from = x + row / at.length * at.entries * at.inner;
                   T* to = out + row * at.inner;
                   if (at.shared) {
                     std::memcpy(to, from + ids[row % at.length] * at.inner,
                                 static_cast<std::size_t>(at.inner) * sizeof(T));
                     continue;
                   }
                   const Id* id = ids + row * at.inner;
                   for (std::int64_t i = 0; i < at.inner; ++i) to[i] = from[id[i] * at.inner + i];
                 }
               });
}

}  // namespace

void cpu::gather(const Gather& a, Queue) {
  with_axis_ids("gather", a.at, [&](const auto* ids) {
    switch (size_of(a.dtype)) {
      case 1:
        return gather_rows<std::uint8_t>(a, ids);
      case 2:
        return gather_rows<std::uint16_t>(a, ids);
      case 4:
        return gather_rows<std::uint32_t>(a, ids);
      default:
        return gather_rows<std::uint64_t>(a, ids);
    }
  });
}

}  // namespace tessera::kernels

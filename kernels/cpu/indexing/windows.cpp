// Copies windows of planes into columns, and sums them back.
#include <algorithm>
#include <cstring>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

// The windows along one dimension whose element `at` lies within the plane: [first, last).
struct Range {
  std::int64_t first, last;
};
Range windows_inside(const WindowShape& s, int dimension, std::int64_t at) {
  const std::int64_t stride = s.stride[dimension];
  const std::int64_t offset = at * s.dilation[dimension] - s.padding[dimension];
  const std::int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const std::int64_t beyond = s.size[dimension] - offset;  // the first position outside
  const std::int64_t last = beyond <= 0 ? 0 : (beyond + stride - 1) / stride;
  const std::int64_t end = std::min(last, s.out[dimension]);
  return {std::min(first, end), end};
}

// The first element that a window reads in a dimension, as its element `at`.
std::int64_t position(const WindowShape& s, int dimension, std::int64_t window, std::int64_t at) {
  return window * s.stride[dimension] + at * s.dilation[dimension] - s.padding[dimension];
}

// One plane and one element (a, b) of its windows: `out` is [out[0], out[1]]. T has the size of an
// element.
template <class T>
void unfold_element(const WindowShape& s, const T* plane, std::int64_t a, std::int64_t b, T* out) {
  const Range rows = windows_inside(s, 0, a), columns = windows_inside(s, 1, b);
  const std::int64_t width = s.out[1], stride = s.stride[1];
  if (columns.first == columns.last) {  // no window reads this element within a row
    std::fill(out, out + s.windows(), T{});
    return;
  }
  std::fill(out, out + rows.first * width, T{});
  for (std::int64_t y = rows.first; y < rows.last; ++y) {
    T* const to = out + y * width;
    const T* const from = plane + position(s, 0, y, a) * s.size[1];
    std::fill(to, to + columns.first, T{});
    const T* const first = from + position(s, 1, columns.first, b);
    if (stride == 1) {
      std::copy_n(first, columns.last - columns.first, to + columns.first);
    } else {
      for (std::int64_t x = columns.first; x < columns.last; ++x) {
        to[x] = first[(x - columns.first) * stride];
      }
    }
    std::fill(to + columns.last, to + width, T{});
  }
  std::fill(out + rows.last * width, out + s.windows(), T{});
}

template <class T>
void unfold_all(const Unfold& a) {
  const WindowShape& s = a.shape;
  const std::int64_t elements = s.kernel[0] * s.kernel[1];
  parallel_for(0, s.planes * elements, cpu::rows_grain(s.windows()),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const std::int64_t element = i % elements;
                   unfold_element(s, static_cast<const T*>(a.x) + i / elements * s.plane(),
                                  element / s.kernel[1], element % s.kernel[1],
                                  static_cast<T*>(a.columns) + i * s.windows());
                 }
               });
}

// Adds element (a, b) of the windows of a plane to `sums`.
template <class T, class C>
void fold_element(const WindowShape& s, const T* columns, std::int64_t a, std::int64_t b, C* sums) {
  const Range rows = windows_inside(s, 0, a), across = windows_inside(s, 1, b);
  const std::int64_t stride = s.stride[1];
  if (across.first == across.last) return;
  for (std::int64_t y = rows.first; y < rows.last; ++y) {
    const T* const from = columns + y * s.out[1];
    C* const to = sums + position(s, 0, y, a) * s.size[1];
    C* const first = to + position(s, 1, across.first, b);
    for (std::int64_t x = across.first; x < across.last; ++x) {
      if constexpr (std::is_same_v<T, C>) {
        first[(x - across.first) * stride] += from[x];
      } else {
        first[(x - across.first) * stride] += to_float(from[x]);
      }
    }
  }
}

// One plane: 16-bit numbers are summed in a buffer of fp32.
template <class T>
void fold_plane(const Fold& a, std::int64_t plane) {
  const WindowShape& s = a.shape;
  const std::int64_t elements = s.kernel[0] * s.kernel[1], n = s.plane();
  const T* const columns = static_cast<const T*>(a.columns) + plane * elements * s.windows();
  T* const out = static_cast<T*>(a.out) + plane * n;
  const auto add_all = [&](auto* sums) {
    for (std::int64_t i = 0; i < elements; ++i) {
      fold_element(s, columns + i * s.windows(), i / s.kernel[1], i % s.kernel[1], sums);
    }
  };
  if constexpr (sizeof(T) >= 4) {
    if (!a.accumulate) std::fill_n(out, n, T{});
    add_all(out);
  } else {
    static thread_local cpu::ScratchBuffer buffer;
    auto* const sums = buffer.get<float>(n);
    for (std::int64_t i = 0; i < n; ++i) sums[i] = a.accumulate ? to_float(out[i]) : 0.0f;
    add_all(sums);
    for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(sums[i]);
  }
}

}  // namespace

void cpu::unfold(const Unfold& a, Queue) {
  switch (size_of(a.dtype)) {
    case 2:
      return unfold_all<std::uint16_t>(a);
    case 4:
      return unfold_all<std::uint32_t>(a);
    default:
      return unfold_all<std::uint64_t>(a);
  }
}

void cpu::fold(const Fold& a, Queue) {
  cpu::for_floating(a.dtype, "fold", [&](auto tag) {
    const std::int64_t work = a.shape.columns() / std::max<std::int64_t>(a.shape.planes, 1);
    parallel_for(0, a.shape.planes, cpu::rows_grain(work),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t plane = first; plane < last; ++plane) {
                     fold_plane<typename decltype(tag)::type>(a, plane);
                   }
                 });
  });
}

}  // namespace tessera::kernels

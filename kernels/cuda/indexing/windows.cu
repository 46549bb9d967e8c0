// Copies windows of planes into columns, and sums them back.
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// columns[i] = the element of its window, or 0; T is a word of an element's size. Bytes: read the
// planes, write the columns.
template <class T>
__global__ void unfold_kernel(WindowShape s, std::int64_t n, const T* x, T* columns) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const Quotient row = divide(i, s.out[1]);
    const Quotient element = divide(row.quotient, s.out[0]);
    const Quotient kernel_row = divide(element.quotient, s.kernel[1]);
    const Quotient plane = divide(kernel_row.quotient, s.kernel[0]);
    const std::int64_t y =
        element.remainder * s.stride[0] + plane.remainder * s.dilation[0] - s.padding[0];
    const std::int64_t at =
        row.remainder * s.stride[1] + kernel_row.remainder * s.dilation[1] - s.padding[1];
    const bool inside = y >= 0 && y < s.size[0] && at >= 0 && at < s.size[1];
    columns[i] = inside ? x[(plane.quotient * s.size[0] + y) * s.size[1] + at] : T{0};
  }
}

// The window whose element `at` reads `position`; -1 if there is none.
__device__ __forceinline__ std::int64_t window_of(const WindowShape& s, int dimension,
                                                  std::int64_t position, std::int64_t at) {
  const std::int64_t from = position + s.padding[dimension] - at * s.dilation[dimension];
  if (from < 0) return -1;
  const Quotient window = divide(from, s.stride[dimension]);
  return window.remainder == 0 && window.quotient < s.out[dimension] ? window.quotient : -1;
}

// out[i] (+)= the elements of the columns that read it, in ascending order. Bytes: read the
// columns, write the planes.
template <class T>
__global__ void fold_kernel(WindowShape s, std::int64_t n, const T* columns, T* out,
                            bool accumulate) {
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const Quotient row = divide(i, s.size[1]);
    const Quotient plane = divide(row.quotient, s.size[0]);
    Compute<T> sum = accumulate ? to_compute(out[i]) : Compute<T>{0};
    for (std::int64_t a = 0; a < s.kernel[0]; ++a) {
      const std::int64_t y = window_of(s, 0, plane.remainder, a);
      if (y < 0) continue;
      for (std::int64_t b = 0; b < s.kernel[1]; ++b) {
        const std::int64_t x = window_of(s, 1, row.remainder, b);
        if (x < 0) continue;
        const std::int64_t element = (plane.quotient * s.kernel[0] + a) * s.kernel[1] + b;
        sum += to_compute(columns[(element * s.out[0] + y) * s.out[1] + x]);
      }
    }
    out[i] = from_compute<T>(sum);
  }
}

}  // namespace

void unfold(const Unfold& a, Queue queue) {
  Context& context = context_of(queue);
  const WindowShape& s = a.shape;
  const std::int64_t n = s.columns();
  const auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto size = static_cast<std::int64_t>(sizeof(T));
    launch(context,
           {"unfold",
            {s.planes, s.plane(), s.kernel[0] * s.kernel[1], s.windows()},
            {reads(a.x, s.elements() * size), writes(a.columns, n * size)}},
           {blocks_for(n, map_threads), map_threads}, unfold_kernel<T>, s, n,
           static_cast<const T*>(a.x), static_cast<T*>(a.columns));
  };
  switch (size_of(a.dtype)) {
    case 2:
      return run(TypeTag<std::uint16_t>{});
    case 4:
      return run(TypeTag<std::uint32_t>{});
    default:
      return run(TypeTag<std::uint64_t>{});
  }
}

void fold(const Fold& a, Queue queue) {
  Context& context = context_of(queue);
  const WindowShape& s = a.shape;
  for_floating(a.dtype, "fold", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto size = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t n = s.elements();
    launch(context,
           {"fold",
            {s.planes, s.plane(), s.kernel[0] * s.kernel[1], s.windows()},
            {reads(a.columns, s.columns() * size), writes(a.out, n * size)}},
           {blocks_for(n, map_threads), map_threads}, fold_kernel<T>, s, n,
           static_cast<const T*>(a.columns), static_cast<T*>(a.out), a.accumulate);
  });
}

}  // namespace tessera::kernels::cuda

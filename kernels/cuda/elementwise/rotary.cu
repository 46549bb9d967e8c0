// Rotary positions: rotates pairs (i, i + head_dim/2) of every head by its row's angles. Products
// are not fused with sums, so the results have the CPU kernel's bits.
#include <cstdint>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// Sizes in elements, as in kernels/rotary.h. Pairs are numbered over all rows and heads.
struct RotaryShape {
  std::int64_t sequence, heads, half, first_position;

  // The offset of the lower element of a pair among rows of `stride` elements.
  __device__ __forceinline__ std::int64_t lower(std::int64_t pair, std::int64_t stride) const {
    const Quotient row = divide(pair, heads * half);
    const Quotient head = divide(row.remainder, half);
    return row.quotient * stride + head.quotient * 2 * half + head.remainder;
  }
  // The index of a pair's angle in the tables.
  __device__ __forceinline__ std::int64_t angle(std::int64_t pair) const {
    const Quotient row = divide(pair, heads * half);
    const std::int64_t position = first_position + divide(row.quotient, sequence).remainder;
    return position * half + divide(row.remainder, half).remainder;
  }
};

// At least sixteen bytes of the fp32 tables.
template <class T>
inline constexpr int rotary_width = width_for<T, float>;

// (lower, upper) = (lower*c - upper*s, upper*c + lower*s). x, out: [rows, heads, 2*half] of T in
// rows of their strides, out may be x; cosine, sine: fp32 [positions, half]; direction -1 rotates
// back. Reads and writes n*sizeof(T) bytes, n = rows*heads*2*half. The tables, 8 bytes per pair of
// one head, stay in the caches.
template <class T>
__global__ void rotary_kernel(Layout layout, RotaryShape shape, const T* x, T* out,
                              const float* cosine, const float* sine, std::int64_t x_stride,
                              std::int64_t out_stride, Compute<T> direction) {
  using C = Compute<T>;
  constexpr int width = rotary_width<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    const auto angle = [&](std::int64_t pair) { return shape.angle(pair); };
    const auto from = [&](std::int64_t pair) { return shape.lower(pair, x_stride); };
    const auto to = [&](std::int64_t pair) { return shape.lower(pair, out_stride); };
    C lower[width], upper[width], c[width], s[width];
    place.gather(x, from, lower);
    place.gather(x + shape.half, from, upper);
    place.gather(cosine, angle, c);
    place.gather(sine, angle, s);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const C turned = s[k] * direction;
      const C old_lower = lower[k];
      lower[k] = product(old_lower, c[k]) - product(upper[k], turned);
      upper[k] = product(upper[k], c[k]) + product(old_lower, turned);
    }
    place.scatter(out, to, lower);
    place.scatter(out + shape.half, to, upper);
  });
}

void require_shape(const Rotary& a) {
  const std::int64_t width = a.heads * a.head_dim;
  if (a.head_dim % 2 != 0) misuse_of("rotary", "the head dimension is odd", a.head_dim);
  if (a.sequence < 1) misuse_of("rotary", "a sequence has at least one position", a.sequence);
  if (a.first_position < 0) misuse_of("rotary", "positions begin at 0", a.first_position);
  if (a.x_stride < width || a.out_stride < width) {
    misuse_of("rotary", "a row stride is smaller than a row's heads",
              std::min(a.x_stride, a.out_stride));
  }
}

// Uses vectors if both halves of every head begin at a vector's boundary.
template <class T>
Layout layout_of_pairs(const Rotary& a) {
  constexpr int width = rotary_width<T>;
  const std::int64_t half = a.head_dim / 2;
  const Layout layout = layout_of<width>(
      a.rows * a.heads * half,
      {{a.x, sizeof(T)}, {a.out, sizeof(T)}, {a.cosine, sizeof(float)}, {a.sine, sizeof(float)}});
  const bool fits =
      layout.skew == 0 && half % width == 0 && a.x_stride % width == 0 && a.out_stride % width == 0;
  return fits ? layout : Layout{layout.n};
}

}  // namespace

void rotary(const Rotary& a, Queue queue) {
  require_shape(a);
  for_floating(a.dtype, "rotary", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = rotary_width<T>;
    const Layout layout = layout_of_pairs<T>(a);
    if (layout.n == 0) return;
    const std::int64_t row = a.heads * a.head_dim;
    const std::int64_t half = a.head_dim / 2;
    const std::int64_t positions = a.first_position + std::min(a.rows, a.sequence);
    const auto table_bytes = positions * half * static_cast<std::int64_t>(sizeof(float));
    launch(context_of(queue),
           {"rotary",
            {a.rows, a.heads, a.head_dim},
            {reads(a.x, ((a.rows - 1) * a.x_stride + row) * sizeof(T)),
             reads(a.cosine, table_bytes), reads(a.sine, table_bytes),
             writes(a.out, ((a.rows - 1) * a.out_stride + row) * sizeof(T))}},
           configuration_of<width>(layout), rotary_kernel<T>, layout,
           RotaryShape{a.sequence, a.heads, half, a.first_position}, static_cast<const T*>(a.x),
           static_cast<T*>(a.out), a.cosine, a.sine, a.x_stride, a.out_stride,
           a.inverse ? Compute<T>(-1) : Compute<T>(1));
  });
}

}  // namespace tessera::kernels::cuda

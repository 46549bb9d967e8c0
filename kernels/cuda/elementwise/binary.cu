// Binary operations, with the second operand repeated over rows, and affine maps. Additions,
// products and divisions each round once, so the results have the CPU kernel's bits.
#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// All threads of a kernel take the same case.
template <int width, class C>
__device__ __forceinline__ void combine(BinaryOp op, C (&a)[width], const C (&b)[width]) {
  const auto each = [&](auto&& operation) {
#pragma unroll
    for (int k = 0; k < width; ++k) a[k] = operation(a[k], b[k]);
  };
  switch (op) {
    case BinaryOp::add:
      return each([](C x, C y) { return x + y; });
    case BinaryOp::subtract:
      return each([](C x, C y) { return x - y; });
    case BinaryOp::multiply:
      return each([](C x, C y) { return x * y; });
    case BinaryOp::divide:
      return each([](C x, C y) { return x / y; });
  }
}

// out[r,i] = a[r,i] op b[i]. a, out: [outer, inner] of T; b: [inner]. With one row out may be a or
// b, with more it may be a. Reads n*sizeof(T) bytes of a and inner*sizeof(T) of b, writes
// n*sizeof(T), n = outer*inner.
template <class T>
__global__ void binary_kernel(Layout layout, BinaryOp op, const T* a, const T* b, T* out,
                              std::int64_t inner) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> left[width], right[width];
    place.load(a, left);
    if (inner == layout.n) {
      place.load(b, right);
    } else {
      place.load_repeated(b, inner, right);
    }
    combine(op, left, right);
    place.store(out, left);
  });
}

// out[i] = x[i] * scale + shift. x, out: [n] of T; out may be x. Reads and writes n*sizeof(T)
// bytes.
template <class T>
__global__ void affine_kernel(Layout layout, const T* x, T* out, Compute<T> scale,
                              Compute<T> shift) {
  constexpr int width = width_for<T>;
  for_places<width>(layout, [&](const Place<width>& place) {
    Compute<T> values[width];
    place.load(x, values);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = product(values[k], scale) + shift;
    place.store(out, values);
  });
}

}  // namespace

void binary(const Binary& a, Queue queue) {
  if (a.op > BinaryOp::divide) {
    misuse_of("binary", "unknown operation", static_cast<std::int64_t>(a.op));
  }
  for_floating(a.dtype, "binary", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const std::int64_t n = a.outer * a.inner;
    // A repeated b is read by vectors if its columns allow it: it does not determine the layout.
    const MappedArray b = {a.outer == 1 ? a.b : nullptr, sizeof(T)};
    const Layout layout = layout_of<width>(n, {{a.a, sizeof(T)}, b, {a.out, sizeof(T)}});
    launch(context_of(queue),
           {"binary",
            {a.outer, a.inner},
            {reads(a.a, n * sizeof(T)), reads(a.b, a.inner * sizeof(T)),
             writes(a.out, n * sizeof(T))}},
           configuration_of<width>(layout), binary_kernel<T>, layout, a.op,
           static_cast<const T*>(a.a), static_cast<const T*>(a.b), static_cast<T*>(a.out), a.inner);
  });
}

void affine(const Affine& a, Queue queue) {
  for_floating(a.dtype, "affine", [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int width = width_for<T>;
    const auto bytes = a.n * sizeof(T);
    const Layout layout = layout_of<width>(a.n, {{a.x, sizeof(T)}, {a.out, sizeof(T)}});
    launch(context_of(queue), {"affine", {a.n}, {reads(a.x, bytes), writes(a.out, bytes)}},
           configuration_of<width>(layout), affine_kernel<T>, layout, static_cast<const T*>(a.x),
           static_cast<T*>(a.out), static_cast<Compute<T>>(a.scale),
           static_cast<Compute<T>>(a.shift));
  });
}

}  // namespace tessera::kernels::cuda

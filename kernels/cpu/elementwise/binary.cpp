// Binary operations, with the second operand repeated over rows, and affine maps.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/binary.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/map-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

template <BinaryOp op, class V>
HWY_INLINE V Result(V a, V b) {
  if constexpr (op == BinaryOp::add) return hn::Add(a, b);
  if constexpr (op == BinaryOp::subtract) return hn::Sub(a, b);
  if constexpr (op == BinaryOp::multiply) return hn::Mul(a, b);
  if constexpr (op == BinaryOp::divide) return hn::Div(a, b);
}

template <BinaryOp op, class T>
void BinaryRange(const T* a, const T* b, T* out, std::int64_t n) {
  Map(
      n, out, [](auto x, auto y) HWY_ATTR { return Result<op>(x, y); }, a, b);
}

template <BinaryOp op, class T>
void BinaryScalarRange(const T* a, const T* b, T* out, std::int64_t n) {
  const auto scalar = hn::Set(Tag<T>(), hn::GetLane(LoadPartial(b, 1)));
  Map(
      n, out, [&](auto x) HWY_ATTR { return Result<op>(x, scalar); }, a);
}

template <BinaryOp op, class T>
void BinaryRows(const Binary& args) {
  const auto* a = static_cast<const T*>(args.a);
  const auto* b = static_cast<const T*>(args.b);
  auto* out = static_cast<T*>(args.out);
  const std::int64_t n = args.outer * args.inner;
  if (args.outer == 1) {
    parallel_for(0, n, cpu::parallel_grain, [&](std::int64_t first, std::int64_t last) {
      BinaryRange<op>(a + first, b + first, out + first, last - first);
    });
    return;
  }
  if (args.inner == 1) {
    parallel_for(0, n, cpu::parallel_grain, [&](std::int64_t first, std::int64_t last) {
      BinaryScalarRange<op>(a + first, b, out + first, last - first);
    });
    return;
  }
  // Short rows would be mostly tails, so b is repeated to rows of at least 256 elements.
  std::vector<T> repeated;
  std::int64_t width = args.inner;
  if (width > 0 && width < 256) {
    const std::int64_t copies = (256 + width - 1) / width;
    repeated.reserve(static_cast<std::size_t>(copies * width));
    for (std::int64_t i = 0; i < copies; ++i) repeated.insert(repeated.end(), b, b + args.inner);
    b = repeated.data();
    width *= copies;
  }
  const std::int64_t rows = width > 0 ? (n + width - 1) / width : 0;
  parallel_for(0, rows, cpu::rows_grain(width), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t start = row * width;
      BinaryRange<op>(a + start, b, out + start, std::min(width, n - start));
    }
  });
}

void BinaryVectors(const Binary& a) {
  cpu::for_floating(a.dtype, "binary", [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (a.op) {
      case BinaryOp::add:
        return BinaryRows<BinaryOp::add, T>(a);
      case BinaryOp::subtract:
        return BinaryRows<BinaryOp::subtract, T>(a);
      case BinaryOp::multiply:
        return BinaryRows<BinaryOp::multiply, T>(a);
      case BinaryOp::divide:
        return BinaryRows<BinaryOp::divide, T>(a);
    }
    misuse("binary: unknown operation {}", static_cast<int>(a.op));
  });
}

template <class T>
void AffineRange(const Affine& a, std::int64_t first, std::int64_t last) {
  const auto* x = static_cast<const T*>(a.x) + first;
  auto* out = static_cast<T*>(a.out) + first;
  const auto scale = hn::Set(Tag<T>(), static_cast<Compute<T>>(a.scale));
  const auto shift = hn::Set(Tag<T>(), static_cast<Compute<T>>(a.shift));
  Map(
      last - first, out, [&](auto v) HWY_ATTR { return hn::Add(hn::Mul(v, scale), shift); }, x);
}

void AffineVectors(const Affine& a) {
  cpu::for_floating(a.dtype, "affine", [&](auto tag) {
    parallel_for(0, a.n, cpu::parallel_grain, [&](std::int64_t first, std::int64_t last) {
      AffineRange<typename decltype(tag)::type>(a, first, last);
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(BinaryVectors);
HWY_EXPORT(AffineVectors);

void cpu::binary(const Binary& a, Queue) {
  HWY_DYNAMIC_DISPATCH(BinaryVectors)(a);
}
void cpu::affine(const Affine& a, Queue) {
  HWY_DYNAMIC_DISPATCH(AffineVectors)(a);
}

}  // namespace tessera::kernels
#endif

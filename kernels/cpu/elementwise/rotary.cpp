// Rotary positions: rotates pairs (i, i + head_dim/2) of every head by its row's angles.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/rotary.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// A vector of the fp32 tables in the compute type of T.
template <class T, class Access>
HWY_INLINE Vec<T> LoadTable(const float* table, Access access) {
  if constexpr (std::is_same_v<T, double>) {
    const hn::Rebind<float, Tag<double>> narrow;
    if constexpr (Access::whole) {
      return hn::PromoteTo(Tag<double>(), hn::LoadU(narrow, table));
    } else {
      return hn::PromoteTo(Tag<double>(), detail::LoadFirst(narrow, table, access.count));
    }
  } else {
    return access.Load(table);
  }
}

template <class T>
HWY_NOINLINE void RotateRows(const Rotary& a, std::int64_t first, std::int64_t last) {
  using C = Compute<T>;
  const std::int64_t half = a.head_dim / 2;
  const auto direction = hn::Set(Tag<T>(), a.inverse ? C{-1} : C{1});
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t position = a.first_position + row % a.sequence;
    const float* cosine = a.cosine + position * half;
    const float* sine = a.sine + position * half;
    for (std::int64_t head = 0; head < a.heads; ++head) {
      const T* x = static_cast<const T*>(a.x) + row * a.x_stride + head * a.head_dim;
      T* out = static_cast<T*>(a.out) + row * a.out_stride + head * a.head_dim;
      ForEach<T>(half, [&](std::int64_t i, auto access) HWY_ATTR {
        const auto c = LoadTable<T>(cosine + i, access);
        const auto s = hn::Mul(LoadTable<T>(sine + i, access), direction);
        const auto lower = access.Load(x + i);
        const auto upper = access.Load(x + half + i);
        access.Store(hn::Sub(hn::Mul(lower, c), hn::Mul(upper, s)), out + i);
        access.Store(hn::Add(hn::Mul(upper, c), hn::Mul(lower, s)), out + half + i);
      });
    }
  }
}

void RotaryRange(const Rotary& a, std::int64_t first, std::int64_t last) {
  cpu::for_floating(a.dtype, "rotary",
                    [&](auto tag) { RotateRows<typename decltype(tag)::type>(a, first, last); });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(RotaryRange);
}  // namespace

void cpu::rotary(const Rotary& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.dtype), "rotary: {} is not a floating type", name_of(a.dtype));
  TESSERA_REQUIRE(a.head_dim % 2 == 0, "rotary: head dimension {} is odd", a.head_dim);
  TESSERA_REQUIRE(a.sequence >= 1 && a.first_position >= 0,
                  "rotary: sequence {} from position {}; positions begin at 0", a.sequence,
                  a.first_position);
  const std::int64_t width = a.heads * a.head_dim;
  TESSERA_REQUIRE(a.x_stride >= width && a.out_stride >= width,
                  "rotary: row strides {} and {} are smaller than {} heads of {}", a.x_stride,
                  a.out_stride, a.heads, a.head_dim);
  const std::int64_t grain =
      std::max<std::int64_t>(1, (1 << 14) / std::max<std::int64_t>(1, width));
  parallel_for(0, a.rows, grain, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(RotaryRange)(a, first, last);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

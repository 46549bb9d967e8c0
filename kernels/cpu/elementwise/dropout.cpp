// Dropout with counter-based draws, optionally added to a residual.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/dropout.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/dropout-inl.h"
#include "kernels/cpu/simd/philox-inl.h"
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "base/parallel.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Draws are made for this many elements at a time, in the first-level cache.
constexpr std::int64_t kTile = 256;

// Prefetches the next tile before the draws of this one, so that memory works during the draws.
template <class T>
HWY_INLINE void PrefetchNext(const T* x, const T* out) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = kTile; i < 2 * kTile; i += kLine) {
    hwy::Prefetch(x + i);
    if (x != out) hwy::Prefetch(out + i);
  }
}

template <class T, bool kResidual, bool kAccumulate>
HWY_NOINLINE void DropoutTyped(const Dropout& a, std::uint32_t threshold, double factor,
                               std::int64_t first, std::int64_t last) {
  const auto scale = hn::Set(Tag<T>(), static_cast<Compute<T>>(factor));
  PhiloxWords<kTile> words;
  for (std::int64_t tile = first; tile < last; tile += kTile) {
    const std::int64_t count = std::min(kTile, last - tile);
    const T* x = static_cast<const T*>(a.x) + tile;
    T* out = static_cast<T*>(a.out) + tile;
    PrefetchNext(x, out);
    const std::uint32_t* draws = words.Generate(a.key, a.first + tile, count);
    ForEach<T>(count, [&](std::int64_t i, auto access) HWY_ATTR {
      auto value = Drop(hn::Mul(access.Load(x + i), scale), draws + i, threshold);
      if constexpr (kResidual) {
        value = hn::Add(value, access.Load(static_cast<const T*>(a.residual) + tile + i));
      }
      if constexpr (kAccumulate) value = hn::Add(access.Load(out + i), value);
      access.Store(value, out + i);
    });
  }
}

template <class T>
void DropoutOptions(const Dropout& a, std::uint32_t threshold, double factor, std::int64_t first,
                    std::int64_t last) {
  if (a.residual != nullptr) {
    a.accumulate ? DropoutTyped<T, true, true>(a, threshold, factor, first, last)
                 : DropoutTyped<T, true, false>(a, threshold, factor, first, last);
  } else {
    a.accumulate ? DropoutTyped<T, false, true>(a, threshold, factor, first, last)
                 : DropoutTyped<T, false, false>(a, threshold, factor, first, last);
  }
}

void DropoutRange(const Dropout& a, std::uint32_t threshold, double factor, std::int64_t first,
                  std::int64_t last) {
  cpu::for_floating(a.dtype, "dropout", [&](auto tag) {
    DropoutOptions<typename decltype(tag)::type>(a, threshold, factor, first, last);
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(DropoutRange);
}  // namespace

void cpu::dropout(const Dropout& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.dtype), "dropout: {} is not a floating type", name_of(a.dtype));
  TESSERA_REQUIRE(a.p >= 0.0f && a.p <= 1.0f, "dropout: probability {} is outside [0, 1]", a.p);
  TESSERA_REQUIRE(a.first >= 0, "dropout: first element {} is negative", a.first);
  // A threshold of 2^32 does not fit its type: at p = 1 the draw that the largest one keeps is
  // scaled by zero.
  constexpr auto kLargest = std::numeric_limits<std::uint32_t>::max();
  const auto threshold = a.p < 1.0f ? static_cast<std::uint32_t>(a.p * 0x1p32) : kLargest;
  const double factor = a.p < 1.0f ? 1.0 / (1.0 - static_cast<double>(a.p)) : 0.0;
  constexpr std::int64_t kGrain = 1 << 14;
  parallel_for(0, a.n, kGrain, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(DropoutRange)(a, threshold, factor, first, last);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

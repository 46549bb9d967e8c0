// Dropout of rows that are numbered individually.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/sequence_dropout.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/dropout-inl.h"
#include "kernels/cpu/simd/philox-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Draws are made for this many elements at a time, in the first-level cache.
constexpr std::int64_t kRowTile = 256;

template <class T>
void DropRow(const SequenceDropout& a, std::int64_t row) {
  const auto threshold = static_cast<std::uint32_t>(a.p * 0x1p32);
  const auto scale =
      hn::Set(Tag<T>(), static_cast<Compute<T>>(1.0 / (1.0 - static_cast<double>(a.p))));
  const std::int64_t first = (a.first + a.slots[row]) * a.dim;
  PhiloxWords<kRowTile> words;
  for (std::int64_t tile = 0; tile < a.dim; tile += kRowTile) {
    const std::int64_t count = std::min(kRowTile, a.dim - tile);
    const T* const x = static_cast<const T*>(a.x) + row * a.dim + tile;
    T* const out = static_cast<T*>(a.out) + row * a.dim + tile;
    const std::uint32_t* draws = words.Generate(a.key, first + tile, count);
    ForEach<T>(count, [&](std::int64_t i, auto access) HWY_ATTR {
      access.Store(Drop(hn::Mul(access.Load(x + i), scale), draws + i, threshold), out + i);
    });
  }
}

void DropRows(const SequenceDropout& a) {
  cpu::for_floating(a.dtype, "sequence_dropout", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) DropRow<T>(a, row);
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(DropRows);

void cpu::sequence_dropout(const SequenceDropout& a, Queue) {
  TESSERA_REQUIRE(a.p >= 0.0f && a.p < 1.0f, "sequence_dropout: probability {} is not in [0, 1)",
                  a.p);
  TESSERA_REQUIRE(a.first >= 0, "sequence_dropout: first slot {} is negative", a.first);
  HWY_DYNAMIC_DISPATCH(DropRows)(a);
}

}  // namespace tessera::kernels
#endif

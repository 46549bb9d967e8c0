// AdamW with bf16 moments that are rounded at random.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/adamw_rounded.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/elementwise/adamw-inl.h"
#include "kernels/cpu/simd/philox-inl.h"
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/elementwise/decay_ranges.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Draws are made for this many elements at a time, in the first-level cache.
constexpr std::int64_t kTile = 256;

// `value` with the bits below bf16's cleared, after `draw`, below 2^16, was added to them.
HWY_INLINE FloatVec RoundAtRandom(FloatVec value, hn::Vec<BitsTag> draw) {
  const BitsTag d;
  const auto bits = hn::BitCast(d, value);
  const auto exponent = hn::Set(d, 0x7f800000u);
  const auto is_finite = hn::Ne(hn::And(bits, exponent), exponent);
  const auto upper = hn::And(hn::Add(bits, draw), hn::Set(d, 0xffff0000u));
  return hn::BitCast(FloatTag(), hn::IfThenElse(is_finite, upper, bits));
}

template <class Grad>
HWY_NOINLINE void RoundedTyped(const AdamWRoundedStep& a, std::int64_t first, std::int64_t last) {
  const BitsTag d;
  const AdamWVectors<float> vectors(a);
  PhiloxWords<kTile> words;
  for (std::int64_t tile = first; tile < last; tile += kTile) {
    const std::int64_t count = std::min(kTile, last - tile);
    float* param = static_cast<float*>(a.param) + tile;
    const Grad* grad = static_cast<const Grad*>(a.grad) + tile;
    BFloat16* m = static_cast<BFloat16*>(a.m) + tile;
    BFloat16* v = static_cast<BFloat16*>(a.v) + tile;
    const std::uint32_t* draws = words.Generate(a.key, a.first + tile, count);
    ForEach<float>(count, [&](std::int64_t i, auto access) HWY_ATTR {
      auto p = access.Load(param + i);
      auto m_i = access.Load(m + i);
      auto v_i = access.Load(v + i);
      vectors.Step(p, access.Load(grad + i), m_i, v_i);
      const auto drawn = hn::LoadU(d, draws + i);
      access.Store(p, param + i);
      access.Store(RoundAtRandom(m_i, hn::And(drawn, hn::Set(d, 0xffffu))), m + i);
      access.Store(RoundAtRandom(v_i, hn::ShiftRight<16>(drawn)), v + i);
    });
  }
}

void AdamWRoundedRange(const AdamWRoundedStep& a, std::int64_t first, std::int64_t last) {
  if (a.grad_dtype == DType::float32) {
    RoundedTyped<float>(a, first, last);
  } else if (a.grad_dtype == DType::bfloat16) {
    RoundedTyped<BFloat16>(a, first, last);
  } else {
    RoundedTyped<Float16>(a, first, last);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(AdamWRoundedRange);

constexpr std::int64_t kGrain = 1 << 14;

}  // namespace

void cpu::adamw_rounded_step(const AdamWRoundedStep& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.grad_dtype) && a.grad_dtype != DType::float64,
                  "adamw_rounded_step: gradients of {} for parameters of float32",
                  name_of(a.grad_dtype));
  parallel_for(0, a.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_decay_ranges(a, begin, end,
                     [](const AdamWRoundedStep& step, std::int64_t first, std::int64_t last) {
                       HWY_DYNAMIC_DISPATCH(AdamWRoundedRange)(step, first, last);
                     });
  });
}

}  // namespace tessera::kernels
#endif

// Drops elements of a vector according to their draws. Included by kernels once per instruction
// set, after simd-inl.h.
#if defined(TESSERA_KERNELS_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_DROPOUT_INL_H_
#undef TESSERA_KERNELS_CPU_DROPOUT_INL_H_
#else
#define TESSERA_KERNELS_CPU_DROPOUT_INL_H_
#endif

#include <cstdint>

#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// Zero where the element's draw is below the threshold.
HWY_INLINE FloatVec Drop(FloatVec value, const std::uint32_t* draws, std::uint32_t threshold) {
  const BitsTag d;
  const auto dropped = hn::Lt(hn::LoadU(d, draws), hn::Set(d, threshold));
  return hn::IfThenZeroElse(hn::RebindMask(FloatTag(), dropped), value);
}

HWY_INLINE Vec<double> Drop(Vec<double> value, const std::uint32_t* draws,
                            std::uint32_t threshold) {
  const hn::RebindToUnsigned<Tag<double>> d;
  const hn::Rebind<std::uint32_t, Tag<double>> narrow;
  const auto dropped = hn::Lt(hn::PromoteTo(d, hn::LoadU(narrow, draws)), hn::Set(d, threshold));
  return hn::IfThenZeroElse(hn::RebindMask(Tag<double>(), dropped), value);
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

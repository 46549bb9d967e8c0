// Shared by the codecs of blocks, compiled once per instruction set.
#if defined(TESSERA_KERNELS_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_BLOCKS_INL_H_
#undef TESSERA_KERNELS_CPU_BLOCKS_INL_H_
#else
#define TESSERA_KERNELS_CPU_BLOCKS_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/blocks/scales.h"
#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace blocks {

// At most 16 lanes: a group of elements or of candidates is a whole number of vectors.
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::Rebind<std::int32_t, Floats>;
using Bytes = hn::Rebind<std::uint8_t, Floats>;

HWY_INLINE std::size_t Step() {
  return hn::Lanes(Floats());
}

// The bits of the largest magnitude; compared as integers, which is the same order. More than
// bits_of_infinity: not a number.
HWY_INLINE std::int32_t LargestBits(const float* values, std::size_t n) {
  const Ints d;
  auto largest = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += Step()) {
    const auto bits = hn::BitCast(d, hn::LoadU(Floats(), values + i));
    largest = hn::Max(largest, hn::And(bits, hn::Set(d, 0x7fffffff)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// True if all are finite, and so small that sums of squares are.
HWY_INLINE bool IsOfOrdinarySize(const float* values, std::size_t n) {
  return LargestBits(values, n) < std::bit_cast<std::int32_t>(1e15f);
}

// Below it, the elements of a group are equal: their float16 scale is 0 in any case.
inline constexpr float smallest_range = 1e-15f;

// Scales, and offsets where the type has them, that are tried together: each is a lane.
inline constexpr std::size_t candidates = 16;
struct Candidates {
  alignas(64) float scales[candidates];
  alignas(64) float offsets[candidates];
  alignas(64) float errors[candidates];

  // The first of the least error.
  [[nodiscard]] std::size_t Best() const {
    std::size_t best = 0;
    for (std::size_t c = 1; c < candidates; ++c) best = errors[c] < errors[best] ? c : best;
    return best;
  }
};

// 1 / v, and 0 for 0.
template <class V>
HWY_INLINE V Inverse(V v) {
  const Floats d;
  const auto is_zero = hn::Eq(v, hn::Zero(d));
  return hn::IfThenZeroElse(is_zero, hn::Div(hn::Set(d, 1.0f), v));
}

template <class V>
HWY_INLINE V RoundTo(V v, float least, float most) {
  const Floats d;
  return hn::Min(hn::Max(hn::Round(v), hn::Set(d, least)), hn::Set(d, most));
}

}  // namespace blocks
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

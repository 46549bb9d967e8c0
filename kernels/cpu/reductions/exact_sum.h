// The inner steps of ExactSum: a number over three limbs, and many numbers at once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/reduction.h"

namespace tessera::kernels::detail {

inline constexpr int kExactSumBias = 1088;  // limb i weighs 2^(32*i - bias)
inline constexpr int kMantissaBits = 52;    // stored ones
inline constexpr int kSubnormalExponent = -1074;
inline constexpr std::uint64_t kInfinityBits = std::uint64_t{0x7ff} << kMantissaBits;
inline constexpr std::uint64_t kLowHalf = 0xffffffffu;

// Adding a double raises three neighbouring limbs by less than 2^32 each. A normalised limb (below
// 2^32) therefore takes 2^30 additions to reach this limit, and one addition never overflows past
// it.
inline constexpr std::uint64_t kLimbLimit = std::uint64_t{1} << 62;

// The position of the number's last mantissa bit, counted from the last bit of limb 0. Subnormals
// are placed like exponent 1.
inline std::uint64_t position_of_exponent(std::uint64_t exponent) {
  return exponent + static_cast<std::uint64_t>(kExactSumBias + kSubnormalExponent - 1);
}

// Adds value * 2^position, counted as above.
inline void add_integer(ExactSum& sum, std::uint64_t value, std::uint64_t position) {
  const unsigned shift = position % 32;
  const std::uint64_t lower = (value & kLowHalf) << shift;
  const std::uint64_t upper = ((value >> 32) << shift) + (lower >> 32);
  std::int64_t* limb = sum.limb.data() + position / 32;
  limb[0] += static_cast<std::int64_t>(lower & kLowHalf);
  limb[1] += static_cast<std::int64_t>(upper & kLowHalf);
  limb[2] += static_cast<std::int64_t>(upper >> 32);
  if (static_cast<std::uint64_t>(limb[0] | limb[1] | limb[2]) >= kLimbLimit) sum.normalize();
}

inline std::uint64_t mantissa_of(std::uint64_t bits) {
  return bits & ((std::uint64_t{1} << kMantissaBits) - 1);
}

// Adds many non-negative doubles. Those within 2^-31 to 2^32 of the first, in practice all, are
// added in one 128-bit integer, for a third of the cost of adding each to the limbs.
inline void add_many(ExactSum& sum, const double* values, std::int64_t count) {
  if (count == 0) return;
  constexpr std::int64_t kBatch = 1024;  // 2^10 numbers of 53 bits, shifted by up to 63, need 126
  for (; count > kBatch; count -= kBatch, values += kBatch) add_many(sum, values, kBatch);
  const std::uint64_t first = std::bit_cast<std::uint64_t>(values[0]) >> kMantissaBits;
  const std::uint64_t base = position_of_exponent(first) - std::min<std::uint64_t>(first, 31);
  __extension__ using Wide = unsigned __int128;
  Wide total = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(values[i]);
    const std::uint64_t exponent = bits >> kMantissaBits;
    const std::uint64_t shift = position_of_exponent(exponent) - base;
    if (shift > 63 || exponent - 1 >= 0x7fe) {  // too far away, subnormal, zero, or not finite
      sum.add(values[i]);
      continue;
    }
    total += static_cast<Wide>(mantissa_of(bits) | (std::uint64_t{1} << kMantissaBits)) << shift;
  }
  if (total == 0) return;  // also if the first number is not a valid start (a NaN with a sign)
  add_integer(sum, static_cast<std::uint64_t>(total), base);
  const auto upper = static_cast<std::uint64_t>(total >> 64);
  if (upper != 0) add_integer(sum, upper, base + 64);
}

}  // namespace tessera::kernels::detail

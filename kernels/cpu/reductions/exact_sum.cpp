// The exact accumulator of doubles: fixed point over the whole range of the type, in 32-bit limbs.
#include "kernels/cpu/reductions/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace tessera::kernels {

using detail::kExactSumBias;
using detail::kLimbLimit;
using detail::kLowHalf;
using detail::kMantissaBits;
using detail::kSubnormalExponent;

void ExactSum::normalize() {
  std::int64_t carry = 0;
  for (int i = 0; i < limbs - 1; ++i) {
    carry += limb[i];
    limb[i] = carry & static_cast<std::int64_t>(kLowHalf);
    carry >>= 32;
  }
  limb[limbs - 1] += carry;
}

void ExactSum::add(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  if (bits < detail::kInfinityBits) {
    const std::uint64_t exponent = bits >> kMantissaBits;
    const std::uint64_t implicit = exponent != 0 ? std::uint64_t{1} << kMantissaBits : 0;
    detail::add_integer(*this, detail::mantissa_of(bits) | implicit,
                        detail::position_of_exponent(std::max<std::uint64_t>(exponent, 1)));
  } else if (!std::isfinite(value)) {
    non_finite = true;
  } else {
    TESSERA_REQUIRE(value == 0, "ExactSum::add takes non-negative numbers, got {}", value);
  }
}

void ExactSum::add(const ExactSum& other) {
  // Both sides' limbs are below 2^62 + 2^32, so the sums fit.
  std::int64_t largest = 0;
  for (int i = 0; i < limbs; ++i) {
    limb[i] += other.limb[i];
    largest |= limb[i];
  }
  non_finite = non_finite || other.non_finite;
  if (static_cast<std::uint64_t>(largest) >= kLimbLimit) normalize();
}

double ExactSum::value() const {
  if (non_finite) return std::numeric_limits<double>::quiet_NaN();
  ExactSum sum = *this;
  sum.normalize();
  int top = limbs - 1;
  while (top >= 0 && sum.limb[top] == 0) --top;
  if (top < 0) return 0.0;
  if (top >= limbs - 2) return std::numeric_limits<double>::infinity();  // 2^1024 and above

  // The leading 64 bits of the sum, and whether lower bits are set.
  const auto limb_at = [&](int i) {
    return i >= 0 ? static_cast<std::uint64_t>(sum.limb[i]) : std::uint64_t{0};
  };
  const int top_bits = std::bit_width(limb_at(top));
  const std::uint64_t third = limb_at(top - 2);
  const std::uint64_t leading =
      (((limb_at(top) << 32) | limb_at(top - 1)) << (32 - top_bits)) | (third >> top_bits);
  bool below = (third & ((std::uint64_t{1} << top_bits) - 1)) != 0;
  for (int i = top - 3; i >= 0 && !below; --i) below = sum.limb[i] != 0;

  // Rounds half to even at the last bit of the type: 53 bits, fewer if subnormal.
  const int lowest_exponent = 32 * top + top_bits - 64 - kExactSumBias;  // of `leading`'s last bit
  const int dropped = std::max(64 - (kMantissaBits + 1), kSubnormalExponent - lowest_exponent);
  if (dropped > 63) return 0.0;  // sums of doubles are multiples of 2^-1074 and never lead here
  std::uint64_t kept = leading >> dropped;
  const std::uint64_t half = std::uint64_t{1} << (dropped - 1);
  const std::uint64_t rest = leading & ((half << 1) - 1);
  if (rest > half || (rest == half && (below || (kept & 1) != 0))) ++kept;
  return std::ldexp(static_cast<double>(kept), lowest_exponent + dropped);
}

}  // namespace tessera::kernels

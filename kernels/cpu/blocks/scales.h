// The float16 scales of blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/low_precision.h"

namespace tessera::kernels::cpu {

inline constexpr float largest_float16 = 65504.0f;
inline constexpr std::int32_t bits_of_infinity = 0x7f800000;

// The factor that elements are multiplied with. 0 for scales whose inverse overflows: their float16
// is 0, so such a block holds zeros whatever its integers are.
inline float inverse_scale(float scale) {
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

inline void put_float16(float value, std::byte* out) {
  const Float16 half = to_float16(value);
  std::memcpy(out, &half.bits, sizeof half.bits);
}

// A block's scale as it is stored. The smallest float16 for a scale that is not 0 and would be.
inline float nearest_float16(float scale) {
  const float nearest = to_float(to_float16(scale));
  return nearest == 0.0f && scale != 0.0f ? std::copysign(0x1p-24f, scale) : nearest;
}

// The integer whose product with the block's scale is nearest to a group's.
inline int rounded_factor(float value, float scale, int least, int most) {
  const float factor = scale == 0.0f ? 0.0f : std::nearbyint(value / scale);
  return static_cast<int>(std::clamp(factor, static_cast<float>(least), static_cast<float>(most)));
}

inline float get_float16(const std::byte* in) {
  Float16 half{};
  std::memcpy(&half.bits, in, sizeof half.bits);
  return to_float(half);
}

}  // namespace tessera::kernels::cpu

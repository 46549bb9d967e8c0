// The dynamic map of 8-bit codes.
#include "base/eight_bit.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

EightBitMap::EightBitMap(bool has_sign) : is_signed(has_sign), count(0), magnitudes{}, below{} {
  constexpr double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};  // their upper ends
  magnitudes[count++] = 0;
  int parts = is_signed ? 1 : 2;
  for (const double end : decades) {
    for (int part = 0; part < parts; ++part) {
      const double middle = 0.1 + 0.9 * (part + 0.5) / parts;
      magnitudes[count++] = static_cast<float>(end * middle);
    }
    parts *= 2;
  }
  magnitudes[count++] = 1;
  below[0] = -std::numeric_limits<float>::infinity();
  for (int i = 1; i < count; ++i) below[i] = (magnitudes[i - 1] + magnitudes[i]) / 2;
  if (!is_signed) below[1] = 0;
  std::fill(below + count, below + 257, std::numeric_limits<float>::infinity());
}

int EightBitMap::nearest(float x) const {
  if (std::isnan(x)) return 0;
  const float* const first = below + 1;
  return static_cast<int>(std::lower_bound(first, below + count, x) - first);
}

std::array<float, 256> EightBitMap::values() const {
  std::array<float, 256> values{};
  for (int i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(is_signed ? eight_bit_zero + i : i)] = magnitudes[i];
  }
  for (int i = 1; is_signed && i <= eight_bit_zero; ++i) {
    values[static_cast<std::size_t>(eight_bit_zero - i)] = -magnitudes[i];
  }
  return values;
}

float encode_eight_bit(const EightBitMap& map, const float* numbers, std::int64_t count,
                       std::uint8_t* codes) {
  float scale = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    scale = std::isfinite(numbers[i]) ? std::max(scale, std::fabs(numbers[i]))
                                      : std::numeric_limits<float>::quiet_NaN();
    if (std::isnan(scale)) break;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const int number = map.nearest(std::fabs(numbers[i]) / scale);
    const int below_zero = eight_bit_zero - std::min(number, eight_bit_zero);
    const int with_sign = numbers[i] < 0 ? below_zero : eight_bit_zero + number;
    codes[i] = static_cast<std::uint8_t>(map.is_signed ? with_sign : number);
  }
  return scale;
}

void decode_eight_bit(const EightBitMap& map, const std::uint8_t* codes, float scale,
                      std::int64_t count, float* numbers) {
  const std::array<float, 256> values = map.values();
  for (std::int64_t i = 0; i < count; ++i) numbers[i] = values[codes[i]] * scale;
}

const EightBitMap& signed_eight_bit_map() {
  static const EightBitMap map(true);
  return map;
}

const EightBitMap& unsigned_eight_bit_map() {
  static const EightBitMap map(false);
  return map;
}

}  // namespace tessera

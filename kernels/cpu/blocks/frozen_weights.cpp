// Encodes frozen weights (base/quantized.h).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/quantized.h"
#include "kernels/blocks.h"

namespace tessera::kernels::cpu {
namespace {

// Half-way between neighbouring numbers: a value has as many of these below it as its code says.
constexpr std::array<float, 15> nf4_bounds = [] {
  std::array<float, 15> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = (nf4_values[i] + nf4_values[i + 1]) / 2.0f;
  }
  return bounds;
}();

std::uint8_t nf4_code(float value) {
  std::uint8_t code = 0;
  for (const float bound : nf4_bounds) code += static_cast<std::uint8_t>(value > bound);
  return code;
}

// The largest magnitude, or NaN.
float largest_magnitude(const float* values, std::int64_t count) {
  std::int32_t bits = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    bits = std::max(bits, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(bits);
}

std::uint8_t nf4_scale_code(float value) {
  const float* const first = nf4_scale_codes.data();
  const float* const end = first + nf4_scale_codes.size();
  const float* above = std::lower_bound(first, end, value);
  if (above == end) return 255;
  if (above != first && value - above[-1] <= *above - value) --above;
  return static_cast<std::uint8_t>(above - first);
}

void put_float(float value, std::byte* out) {
  std::memcpy(out, &value, sizeof(value));
}

}  // namespace

void encode_nf4(const float* values, std::byte* codes, float* scales, std::int64_t blocks) {
  for (std::int64_t b = 0; b < blocks; ++b, values += nf4_block, codes += nf4_block / 2) {
    scales[b] = largest_magnitude(values, nf4_block);
    // As in bitsandbytes, a block of zeros is divided by a small number.
    const float inverse = 1.0f / std::max(scales[b], 1e-38f);
    for (std::int64_t i = 0; i < nf4_block / 2; ++i) {
      const int first = nf4_code(values[2 * i] * inverse);
      const int second = nf4_code(values[2 * i + 1] * inverse);
      codes[i] = static_cast<std::byte>(first << 4 | second);
    }
  }
}

void encode_nf4_scales(const float* scales, std::int64_t n, std::byte* out) {
  const Nf4Layout layout(n);
  double sum = 0;
  for (std::int64_t b = 0; b < layout.blocks; ++b) sum += scales[b];
  const auto mean = static_cast<float>(sum / static_cast<double>(layout.blocks));
  std::memset(out, 0, static_cast<std::size_t>(layout.bytes - layout.scale_codes));
  std::byte* const factors = out + (layout.group_factors - layout.scale_codes);
  std::vector<float> centred(static_cast<std::size_t>(nf4_group));
  for (std::int64_t group = 0; group < layout.groups; ++group) {
    const std::int64_t first = group * nf4_group;
    const std::int64_t count = std::min(nf4_group, layout.blocks - first);
    for (std::int64_t i = 0; i < count; ++i) {
      centred[static_cast<std::size_t>(i)] = scales[first + i] - mean;
    }
    const float factor = largest_magnitude(centred.data(), count);
    put_float(factor, factors + 4 * group);
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = factor == 0 ? 0 : centred[static_cast<std::size_t>(i)] / factor;
      out[first + i] = static_cast<std::byte>(nf4_scale_code(value));
    }
  }
  put_float(mean, out + (layout.mean - layout.scale_codes));
}

float encode_int8_row(const float* values, std::byte* codes, std::int64_t columns) {
  const float largest = largest_magnitude(values, columns);
  const float factor = largest == 0 ? 0 : 127.0f / largest;
  if (!std::isfinite(largest) || !std::isfinite(factor)) {
    std::memset(codes, 0, static_cast<std::size_t>(columns));
    return std::isfinite(largest) ? 0 : largest;
  }
  for (std::int64_t i = 0; i < columns; ++i) {
    codes[i] = static_cast<std::byte>(static_cast<std::int8_t>(std::lrint(values[i] * factor)));
  }
  return largest / 127.0f;
}

}  // namespace tessera::kernels::cpu

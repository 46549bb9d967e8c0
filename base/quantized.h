// Frozen weights as 4-bit or 8-bit integers: the layouts of their bytes, and the numbers that codes
// stand for. A weight is cut into blocks in row-major order, over the ends of rows.
//
// nf4 is QLoRA's data type (Dettmers et al. 2023, arXiv:2305.14314) with double quantisation, with
// the numbers of bitsandbytes. A block is 64 elements, its scale the largest magnitude:
//
//   [n / 2]     a code for each element, two in a byte, the first in its upper half
//   [n / 64]    a code for each scale: scale = nf4_scale_codes[code] * group's + mean
//   [0..3]      zeros, to a multiple of 4
//   [4 groups]  fp32, a factor for each 256 scales
//   [4]         fp32, the mean of all scales
//
// int8 is LLM.int8's without outliers (arXiv:2208.07339): a scale for each row of the stored
// weight.
//
//   [n]         int8
//   [4 rows]    fp32, the largest magnitude of a row, over 127
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class QuantizedFormat : std::uint8_t { nf4, int8 };

constexpr std::string_view name_of(QuantizedFormat format) {
  return format == QuantizedFormat::nf4 ? "nf4" : "int8";
}

inline constexpr std::int64_t nf4_block = 64;   // elements with one scale
inline constexpr std::int64_t nf4_group = 256;  // scales with one factor

// A weight has to consist of whole blocks.
constexpr bool can_quantize(std::int64_t rows, std::int64_t columns) {
  return rows > 0 && columns > 0 && rows * columns % nf4_block == 0;
}

// Where the parts of an nf4 weight of n elements begin.
struct Nf4Layout {
  std::int64_t blocks, groups;
  std::int64_t scale_codes, group_factors, mean;  // in bytes; the codes of elements begin at 0
  std::int64_t bytes;

  explicit constexpr Nf4Layout(std::int64_t n)
      : blocks(n / nf4_block),
        groups((blocks + nf4_group - 1) / nf4_group),
        scale_codes(n / 2),
        group_factors(scale_codes + (blocks + 3) / 4 * 4),
        mean(group_factors + 4 * groups),
        bytes(mean + 4) {}
};

constexpr std::int64_t quantized_bytes(QuantizedFormat format, std::int64_t rows,
                                       std::int64_t columns) {
  return format == QuantizedFormat::nf4 ? Nf4Layout(rows * columns).bytes
                                        : rows * columns + 4 * rows;
}

// The 16 numbers of the codes of elements: quantiles of a normal distribution.
inline constexpr std::array<float, 16> nf4_values{
    -0x1.0p+0f,      -0x1.647362p-1f, -0x1.0cd66p-1f,  -0x1.9465400p-2f,
    -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f, 0.0f,
    0x1.45f5fep-4f,  0x1.4995c6p-3f,  0x1.f809bap-3f,  0x1.5a0674p-2f,
    0x1.c3497p-2f,   0x1.200f56p-1f,  0x1.722726p-1f,  0x1.0p+0f};

// The 256 numbers of the codes of scales, rising: "dynamic" 8-bit numbers (arXiv:1511.04561), whose
// exponent is a power of ten, and whose fraction has one bit more for each higher power.
consteval std::array<float, 256> make_nf4_scale_codes() {
  std::array<float, 256> codes{};
  codes[255] = 1.0f;
  const float powers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  for (int exponent = 0; exponent < 7; ++exponent) {
    // Means of neighbouring bounds from 0.1 to 1, which are rounded as torch.linspace rounds them.
    const int count = 1 << exponent;
    const float step = (1.0f - 0.1f) / static_cast<float>(count);
    const auto bound = [&](int i) {
      const double step_64 = step;
      return static_cast<float>(i < (count + 1) / 2 ? double{0.1f} + step_64 * i
                                                    : 1.0 - step_64 * (count - i));
    };
    for (int i = 0; i < count; ++i) {
      const float value = powers[exponent] * ((bound(i) + bound(i + 1)) / 2.0f);
      const int place = count - 1 + i;
      codes[static_cast<std::size_t>(128 + place)] = value;
      codes[static_cast<std::size_t>(126 - place)] = -value;
    }
  }
  return codes;
}
inline constexpr std::array<float, 256> nf4_scale_codes = make_nf4_scale_codes();

}  // namespace tessera

// 8-bit numbers in blocks of 32 that share a power of two, like OCP's microscaling formats (MXINT8,
// MXFP8). Collectives send them in place of wider numbers. CPU and GPU compute the same bits.
//
// The scale of a block is one byte, the exponent + 127. 255 means that the block has an Inf or NaN;
// all its elements are then decoded as NaN. The scale is the smallest with which no element
// overflows. An int8 element is decoded to within 1/127 of the block's largest magnitude, and is
// exact in every floating type. An fp8 element has 3 (e4m3) or 2 (e5m2) mantissa bits behind the
// leading one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class WireFormat : std::uint8_t { same, bf16, int8, fp8_e4m3, fp8_e5m2 };

constexpr std::string_view name_of(WireFormat format) {
  switch (format) {
    case WireFormat::same:
      return "same";
    case WireFormat::bf16:
      return "bf16";
    case WireFormat::int8:
      return "int8";
    case WireFormat::fp8_e4m3:
      return "fp8_e4m3";
    case WireFormat::fp8_e5m2:
      return "fp8_e5m2";
  }
  return "unknown";
}

// Elements of a block. Parameters are aligned to it, so no block spans two parameters.
inline constexpr std::int64_t wire_block = 32;
constexpr bool has_blocks(WireFormat format) {
  return format == WireFormat::int8 || format == WireFormat::fp8_e4m3 ||
         format == WireFormat::fp8_e5m2;
}
// Bytes of n elements in a format that is not `same`, and of their scales, which are stored apart.
constexpr std::size_t wire_element_bytes(WireFormat format) {
  return format == WireFormat::bf16 ? 2 : 1;
}
constexpr std::size_t wire_payload_bytes(WireFormat format, std::int64_t n) {
  return static_cast<std::size_t>(n) * wire_element_bytes(format);
}
constexpr std::size_t wire_scale_bytes(WireFormat format, std::int64_t n) {
  return has_blocks(format) ? static_cast<std::size_t>((n + wire_block - 1) / wire_block) : 0;
}
constexpr std::size_t wire_bytes(WireFormat format, std::int64_t n) {
  return wire_payload_bytes(format, n) + wire_scale_bytes(format, n);
}

namespace kernels {

inline constexpr std::uint8_t scale_of_nan = 255;
inline constexpr std::uint32_t infinity_bits = 0x7f800000u;

// `top` is the exponent of the largest number. A block whose largest magnitude has a mantissa of
// `limit` or more would round beyond that number, so it uses the next scale.
template <WireFormat format>
struct BlockNumbers;
template <>
struct BlockNumbers<WireFormat::int8> {
  static constexpr int top = 6;  // 127 * 2^0
  static constexpr std::uint32_t limit = 0x7f0000u;
};
template <>
struct BlockNumbers<WireFormat::fp8_e4m3> {
  static constexpr int top = 8;  // 448
  static constexpr std::uint32_t limit = 0x680000u;
  static constexpr int mantissa = 3, bias = 7;
};
template <>
struct BlockNumbers<WireFormat::fp8_e5m2> {
  static constexpr int top = 15;  // 57344
  static constexpr std::uint32_t limit = 0x700000u;
  static constexpr int mantissa = 2, bias = 15;
};

// The bits of a float without its sign. Their order is that of magnitudes, with NaNs at the top.
constexpr std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

template <WireFormat format>
constexpr std::uint8_t scale_of_block(std::uint32_t largest_magnitude) {
  using Numbers = BlockNumbers<format>;
  if (largest_magnitude >= infinity_bits) return scale_of_nan;
  const auto exponent = static_cast<int>(largest_magnitude >> 23);
  const int next = (largest_magnitude & 0x7fffffu) >= Numbers::limit ? 1 : 0;
  const int scale = exponent - Numbers::top + next;
  return static_cast<std::uint8_t>(scale < 1 ? 1 : scale);
}

// Factors that bring elements into the format's range, and back. Both are exact.
constexpr float to_block(std::uint8_t scale) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(254 - scale) << 23);
}
constexpr float from_block(std::uint8_t scale) {  // infinity, for the zeros of a block with NaNs
  return std::bit_cast<float>(static_cast<std::uint32_t>(scale) << 23);
}

// Rounds to the nearest integer, ties to even, for values below 2^22.
constexpr float nearest_integer(float value) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23
  return (value + magic) - magic;
}

template <WireFormat format>
constexpr std::uint8_t encode_element(float value) {
  if constexpr (format == WireFormat::int8) {
    return static_cast<std::uint8_t>(static_cast<int>(nearest_integer(value)));
  } else {
    using Numbers = BlockNumbers<format>;
    constexpr int dropped = 23 - Numbers::mantissa;
    const std::uint32_t magnitude = magnitude_bits(value);
    const std::uint32_t sign = (std::bit_cast<std::uint32_t>(value) >> 24) & 0x80u;
    // Below the smallest normal number: multiples of the smallest subnormal.
    constexpr float steps = std::bit_cast<float>(
        static_cast<std::uint32_t>(127 + Numbers::bias - 1 + Numbers::mantissa) << 23);
    constexpr std::uint32_t normal = static_cast<std::uint32_t>(128 - Numbers::bias) << 23;
    const auto subnormal = static_cast<std::uint32_t>(
        nearest_integer(std::bit_cast<float>(magnitude < normal ? magnitude : 0u) * steps));
    const std::uint32_t rounded =
        (magnitude + ((1u << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1u)) >> dropped;
    const std::uint32_t rebiased =
        rounded - (static_cast<std::uint32_t>(127 - Numbers::bias) << Numbers::mantissa);
    return static_cast<std::uint8_t>(sign | (magnitude < normal ? subnormal : rebiased));
  }
}

template <WireFormat format>
constexpr float decode_element(std::uint8_t code) {
  if constexpr (format == WireFormat::int8) {
    return static_cast<float>(static_cast<std::int8_t>(code));
  } else {
    using Numbers = BlockNumbers<format>;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(code & 0x7fu)
                                    << (23 - Numbers::mantissa);
    const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
    // Read as a float it has the format's bias; the factor corrects that, for subnormals as well.
    constexpr float bias =
        std::bit_cast<float>(static_cast<std::uint32_t>(254 - Numbers::bias) << 23);
    return std::bit_cast<float>(magnitude | sign) * bias;
  }
}

}  // namespace kernels
}  // namespace tessera

// Numbers as unsigned integers in the same order.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera::kernels {

// NaN is the largest; -0 equals 0. The complement has the descending order. constexpr, so that GPUs
// can call it.
constexpr std::uint32_t sort_key(float value) {
  if (value != value) return ~std::uint32_t{0};
  const auto bits = std::bit_cast<std::uint32_t>(value == 0 ? 0.0f : value);
  return (bits >> 31) != 0 ? ~bits : bits | (std::uint32_t{1} << 31);
}
constexpr std::uint64_t sort_key(double value) {
  if (value != value) return ~std::uint64_t{0};
  const auto bits = std::bit_cast<std::uint64_t>(value == 0 ? 0.0 : value);
  return (bits >> 63) != 0 ? ~bits : bits | (std::uint64_t{1} << 63);
}

}  // namespace tessera::kernels

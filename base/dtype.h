// Element types: their names, sizes and storage representations. Everything above shares this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

// Values are part of checkpoint manifests and of collective tags: do not renumber.
enum class DType : std::uint8_t {
  float32 = 0,
  bfloat16 = 1,
  float16 = 2,
  float64 = 3,
  int32 = 4,
  int64 = 5,
  uint8 = 6,
  boolean = 7,
};

inline constexpr DType float32 = DType::float32;
inline constexpr DType bfloat16 = DType::bfloat16;
inline constexpr DType float16 = DType::float16;
inline constexpr DType float64 = DType::float64;
inline constexpr DType int32 = DType::int32;
inline constexpr DType int64 = DType::int64;
inline constexpr DType uint8 = DType::uint8;
inline constexpr DType boolean = DType::boolean;

// Bit patterns only; arithmetic happens in float. Conversions live in base/low_precision.h.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::uint8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16 ||
         dtype == DType::float64;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float16:
      return "float16";
    case DType::float64:
      return "float64";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::boolean:
      return "boolean";
  }
  return "unknown";
}

template <class T>
inline constexpr DType dtype_of = DType{};
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bfloat16;
template <>
inline constexpr DType dtype_of<Float16> = DType::float16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::int64;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::uint8;

}  // namespace tessera

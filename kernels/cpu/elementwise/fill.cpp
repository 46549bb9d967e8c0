// Fill: one bit pattern repeated.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/from_double.h"
#include "kernels/registry.h"

namespace tessera::kernels::cpu {
namespace {

template <class T, class Bits>
void fill_as(const Fill& a) {
  const Bits pattern = std::bit_cast<Bits>(from_double<T>(a.value));
  auto* out = static_cast<Bits*>(a.out);
  const auto bytes = std::bit_cast<std::array<unsigned char, sizeof(Bits)>>(pattern);
  const bool one_byte =
      std::all_of(bytes.begin(), bytes.end(), [&](unsigned char byte) { return byte == bytes[0]; });
  parallel_for(0, a.n, 4 * parallel_grain, [&](std::int64_t first, std::int64_t last) {
    if (one_byte) {
      std::memset(out + first, bytes[0], static_cast<std::size_t>(last - first) * sizeof(Bits));
    } else {
      std::fill(out + first, out + last, pattern);
    }
  });
}

}  // namespace

void fill(const Fill& a, Queue) {
  switch (a.dtype) {
    case DType::float32:
      return fill_as<float, std::uint32_t>(a);
    case DType::bfloat16:
      return fill_as<BFloat16, std::uint16_t>(a);
    case DType::float16:
      return fill_as<Float16, std::uint16_t>(a);
    case DType::float64:
      return fill_as<double, std::uint64_t>(a);
    case DType::int32:
      return fill_as<std::int32_t, std::uint32_t>(a);
    case DType::int64:
      return fill_as<std::int64_t, std::uint64_t>(a);
    case DType::uint8:
      return fill_as<std::uint8_t, std::uint8_t>(a);
    case DType::boolean:
      return fill_as<bool, std::uint8_t>(a);
  }
  misuse("fill: unknown dtype {}", static_cast<int>(a.dtype));
}

}  // namespace tessera::kernels::cpu

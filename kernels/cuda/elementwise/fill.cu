// Fill: one bit pattern repeated.
#include <bit>
#include <cstdint>

#include "kernels/cpu/simd/from_double.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// out[i] = pattern. out: [n] of any dtype, as Bits of its size. Writes n*size bytes.
template <class Bits>
__global__ void fill_kernel(Layout layout, Bits* out, Bits pattern) {
  constexpr int width = width_for<Bits>;
  Bits values[width];
#pragma unroll
  for (int k = 0; k < width; ++k) values[k] = pattern;
  for_places<width>(layout, [&](const Place<width>& place) { place.store(out, values); });
}

// The host converts the value, with the CPU's own function.
template <class T, class Bits>
void fill_as(const Fill& a, Context& context) {
  constexpr int width = width_for<Bits>;
  const auto pattern = std::bit_cast<Bits>(cpu::from_double<T>(a.value));
  const Layout layout = layout_of<width>(a.n, {{a.out, sizeof(Bits)}});
  launch(context, {"fill", {a.n}, {writes(a.out, a.n * sizeof(Bits))}},
         configuration_of<width>(layout), fill_kernel<Bits>, layout, static_cast<Bits*>(a.out),
         pattern);
}

}  // namespace

void fill(const Fill& a, Queue queue) {
  Context& context = context_of(queue);
  switch (a.dtype) {
    case DType::float32:
      return fill_as<float, std::uint32_t>(a, context);
    case DType::bfloat16:
      return fill_as<BFloat16, std::uint16_t>(a, context);
    case DType::float16:
      return fill_as<Float16, std::uint16_t>(a, context);
    case DType::float64:
      return fill_as<double, std::uint64_t>(a, context);
    case DType::int32:
      return fill_as<std::int32_t, std::uint32_t>(a, context);
    case DType::int64:
      return fill_as<std::int64_t, std::uint64_t>(a, context);
    case DType::uint8:
      return fill_as<std::uint8_t, std::uint8_t>(a, context);
    case DType::boolean:
      return fill_as<bool, std::uint8_t>(a, context);
  }
  unsupported("fill", a.dtype);
}

}  // namespace tessera::kernels::cuda

// Cast: conversions between floating dtypes with a scale and an optional accumulation, and from
// integers. Numbers have the CPU kernel's bits; a NaN stays a NaN, with any payload.
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

// A float that rounds to the same 16-bit number as `value`: truncated, with the last bit set if
// anything was cut off (round to odd). A second rounding then sees on which side of a tie it is.
__device__ __forceinline__ float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (value != value || static_cast<double>(nearest) == value) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (fabs(static_cast<double>(nearest)) > fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

// double to a floating storage type with one rounding.
template <class T>
__device__ __forceinline__ T from_double(double value) {
  if constexpr (sizeof(T) == 2) {
    return from_compute<T>(round_to_odd(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class In, class Out>
__device__ __forceinline__ Out convert_floating(In in, Out old, float scale, bool accumulate) {
  using Wide = std::conditional_t<std::is_same_v<Compute<In>, Compute<Out>>, Compute<In>, double>;
  const Wide term = product(static_cast<Wide>(to_compute(in)), static_cast<Wide>(scale));
  const Wide value = accumulate ? static_cast<Wide>(to_compute(old)) + term : term;
  if constexpr (std::is_same_v<Compute<In>, Compute<Out>>) {
    return from_compute<Out>(value);
  } else {
    return from_double<Out>(value);
  }
}

template <class In, class Out>
__device__ __forceinline__ Out convert_integer(In in, Out old, bool accumulate) {
  if constexpr (std::is_same_v<Out, bool>) {
    return (accumulate && old) || in != 0;
  } else if constexpr (std::is_integral_v<Out>) {
    const auto value = static_cast<std::int64_t>(in);
    return static_cast<Out>(accumulate ? value + static_cast<std::int64_t>(old) : value);
  } else {
    if (accumulate) {
      return from_double<Out>(static_cast<double>(to_compute(old)) + static_cast<double>(in));
    }
    if constexpr (sizeof(Out) >= 4) {
      return static_cast<Out>(in);
    } else {
      return from_double<Out>(static_cast<double>(in));
    }
  }
}

// out[i] = convert(in[i] * scale), or out[i] += when accumulate. in: [n] of In, out: [n] of Out;
// fp32 arithmetic, or fp64 where either type is fp64. Reads n*sizeof(In) bytes, writes
// n*sizeof(Out), and reads as many more when accumulating.
template <class In, class Out>
__global__ void cast_kernel(Layout layout, const In* in, Out* out, float scale, bool accumulate) {
  constexpr int width = width_for<In, Out>;
  for_places<width>(layout, [&](const Place<width>& place) {
    In values[width];
    Out results[width] = {};
    place.load(in, values);
    if (accumulate) place.load(out, results);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if constexpr (std::is_integral_v<In>) {
        results[k] = convert_integer<In, Out>(values[k], results[k], accumulate);
      } else {
        results[k] = convert_floating<In, Out>(values[k], results[k], scale, accumulate);
      }
    }
    place.store(out, results);
  });
}

template <class In, class Out>
void launch_cast(const Cast& a, Context& context) {
  constexpr int width = width_for<In, Out>;
  const Layout layout = layout_of<width>(a.n, {{a.in, sizeof(In)}, {a.out, sizeof(Out)}});
  const auto out_bytes = a.n * sizeof(Out);
  launch(context,
         {"cast",
          {a.n},
          {reads(a.in, a.n * sizeof(In)), reads(a.accumulate ? a.out : nullptr, out_bytes),
           writes(a.out, out_bytes)}},
         configuration_of<width>(layout), cast_kernel<In, Out>, layout,
         static_cast<const In*>(a.in), static_cast<Out*>(a.out), a.scale, a.accumulate);
}

template <class Body>
void for_integer(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::int32:
      return body(TypeTag<std::int32_t>{});
    case DType::int64:
      return body(TypeTag<std::int64_t>{});
    case DType::uint8:
      return body(TypeTag<std::uint8_t>{});
    case DType::boolean:
      return body(TypeTag<bool>{});
    default:
      unsupported("cast", dtype);
  }
}

void cast_from_integer(const Cast& a, Context& context) {
  if (a.scale != 1.0f) {
    misuse_of("cast", "integers take no scale", static_cast<std::int64_t>(a.in_dtype));
  }
  for_integer(a.in_dtype, [&](auto in_tag) {
    using In = typename decltype(in_tag)::type;
    const auto run = [&](auto out_tag) {
      launch_cast<In, typename decltype(out_tag)::type>(a, context);
    };
    if (is_floating(a.out_dtype)) {
      for_floating(a.out_dtype, "cast", run);
    } else {
      for_integer(a.out_dtype, run);
    }
  });
}

// Copies the same bits.
void copy(const Cast& a, Context& context) {
  if (a.in == a.out || a.n == 0) return;
  TESSERA_CUDA(cudaMemcpyAsync(a.out, a.in, static_cast<std::size_t>(a.n) * size_of(a.in_dtype),
                               cudaMemcpyDeviceToDevice, context.stream));
}

}  // namespace

void cast(const Cast& a, Queue queue) {
  Context& context = context_of(queue);
  if (a.in_dtype == a.out_dtype && a.scale == 1.0f && !a.accumulate) return copy(a, context);
  if (!is_floating(a.in_dtype)) return cast_from_integer(a, context);
  if (!is_floating(a.out_dtype)) unsupported("cast from a floating dtype", a.out_dtype);
  for_floating(a.in_dtype, "cast", [&](auto in_tag) {
    for_floating(a.out_dtype, "cast", [&](auto out_tag) {
      launch_cast<typename decltype(in_tag)::type, typename decltype(out_tag)::type>(a, context);
    });
  });
}

}  // namespace tessera::kernels::cuda

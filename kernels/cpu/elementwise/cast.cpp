// Cast: conversions between floating dtypes with a scale and an optional accumulation, and from
// integers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/cast.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <cstring>

#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/from_double.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// In and Out have the same compute type.
template <class In, class Out>
void CastRange(const Cast& a, std::int64_t first, std::int64_t last) {
  const auto* in = static_cast<const In*>(a.in) + first;
  auto* out = static_cast<Out*>(a.out) + first;
  const auto scale = hn::Set(Tag<In>(), static_cast<Compute<In>>(a.scale));
  const std::int64_t n = last - first;
  if (a.accumulate) {
    ForEach<In>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto term = hn::Mul(access.Load(in + i), scale);
      access.Store(hn::Add(access.Load(out + i), term), out + i);
    });
  } else if (a.scale == 1.0f) {
    ForEach<In>(n, [&](std::int64_t i, auto access)
                       HWY_ATTR { access.Store(access.Load(in + i), out + i); });
  } else {
    ForEach<In>(n, [&](std::int64_t i, auto access)
                       HWY_ATTR { access.Store(hn::Mul(access.Load(in + i), scale), out + i); });
  }
}

// Casts between dtypes of one compute type: fp32 and the 16-bit formats, or fp64 with itself.
void CastVectors(const Cast& a) {
  cpu::for_floating(a.in_dtype, "cast", [&](auto in_tag) {
    cpu::for_floating(a.out_dtype, "cast", [&](auto out_tag) {
      using In = typename decltype(in_tag)::type;
      using Out = typename decltype(out_tag)::type;
      if constexpr (std::is_same_v<Compute<In>, Compute<Out>>) {
        parallel_for(0, a.n, cpu::parallel_grain, [&](std::int64_t first, std::int64_t last) {
          CastRange<In, Out>(a, first, last);
        });
      }
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(CastVectors);

namespace cpu {
namespace {

double widen(double value) {
  return value;
}
double widen(float value) {
  return value;
}
double widen(BFloat16 value) {
  return to_float(value);
}
double widen(Float16 value) {
  return to_float(value);
}

// Between fp64 and the narrower floating dtypes: fp64 arithmetic, one rounding.
template <class In, class Out>
void cast_through_double(const Cast& a) {
  const auto* in = static_cast<const In*>(a.in);
  auto* out = static_cast<Out*>(a.out);
  const double scale = a.scale;
  parallel_for(0, a.n, parallel_grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const double value = widen(in[i]) * scale;
      out[i] = from_double<Out>(a.accumulate ? widen(out[i]) + value : value);
    }
  });
}

template <class In, class Out>
void cast_integers(const Cast& a) {
  const auto* in = static_cast<const In*>(a.in);
  auto* out = static_cast<Out*>(a.out);
  parallel_for(0, a.n, parallel_grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      if constexpr (std::is_same_v<Out, bool>) {
        out[i] = (a.accumulate && out[i]) || in[i] != 0;
      } else if constexpr (std::is_integral_v<Out>) {
        const auto value = static_cast<std::int64_t>(in[i]);
        out[i] = static_cast<Out>(a.accumulate ? value + static_cast<std::int64_t>(out[i]) : value);
      } else if (a.accumulate) {
        out[i] = from_double<Out>(widen(out[i]) + static_cast<double>(in[i]));
      } else if constexpr (sizeof(Out) >= 4) {
        out[i] = static_cast<Out>(in[i]);
      } else {
        out[i] = from_double<Out>(static_cast<double>(in[i]));
      }
    }
  });
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
      break;
  }
  misuse("cast: unknown dtype {}", static_cast<int>(dtype));
}

void cast_from_integer(const Cast& a) {
  TESSERA_REQUIRE(a.scale == 1.0f, "cast: {} to {} takes no scale (got {})", name_of(a.in_dtype),
                  name_of(a.out_dtype), a.scale);
  for_integer(a.in_dtype, [&](auto in_tag) {
    using In = typename decltype(in_tag)::type;
    const auto run = [&](auto out_tag) { cast_integers<In, typename decltype(out_tag)::type>(a); };
    if (is_floating(a.out_dtype)) {
      for_floating(a.out_dtype, "cast", run);
    } else {
      for_integer(a.out_dtype, run);
    }
  });
}

void copy(const Cast& a) {
  if (a.in == a.out) return;
  const auto size = static_cast<std::int64_t>(size_of(a.in_dtype));
  const auto* in = static_cast<const char*>(a.in);
  auto* out = static_cast<char*>(a.out);
  parallel_for(0, a.n, parallel_grain, [&](std::int64_t first, std::int64_t last) {
    std::memcpy(out + first * size, in + first * size,
                static_cast<std::size_t>((last - first) * size));
  });
}

}  // namespace

void cast(const Cast& a, Queue) {
  if (a.in_dtype == a.out_dtype && a.scale == 1.0f && !a.accumulate) return copy(a);
  if (!is_floating(a.in_dtype)) return cast_from_integer(a);
  TESSERA_REQUIRE(is_floating(a.out_dtype),
                  "cast: {} to {} would drop fractions; only floating outputs are supported",
                  name_of(a.in_dtype), name_of(a.out_dtype));
  if ((a.in_dtype == float64) == (a.out_dtype == float64)) {
    HWY_DYNAMIC_DISPATCH(CastVectors)(a);
    return;
  }
  for_floating(a.in_dtype, "cast", [&](auto in_tag) {
    for_floating(a.out_dtype, "cast", [&](auto out_tag) {
      using In = typename decltype(in_tag)::type;
      using Out = typename decltype(out_tag)::type;
      if constexpr (std::is_same_v<In, double> != std::is_same_v<Out, double>) {
        cast_through_double<In, Out>(a);
      }
    });
  });
}

}  // namespace cpu
}  // namespace tessera::kernels
#endif

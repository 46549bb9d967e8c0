// Vectors of the compute type for every storage type, compiled once per instruction set (Highway).
//
// A kernel file begins like this:
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "kernels/cpu/name.cpp"
//   #include "kernels/cpu/simd/simd_targets.h"
//   #include "hwy/foreach_target.h"
//   #include "kernels/cpu/simd/simd-inl.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace tessera::kernels::HWY_NAMESPACE { ... }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE ... HWY_EXPORT / HWY_DYNAMIC_DISPATCH ... #endif
//
// A storage type T (float, double, BFloat16, Float16) is loaded as Vec<T>: lanes of float, or of
// double for double. A tail uses the same vector arithmetic as whole vectors, so the split of an
// array cannot change an element's bits.
#if defined(TESSERA_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_SIMD_INL_H_
#undef TESSERA_KERNELS_CPU_SIMD_INL_H_
#else
#define TESSERA_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/cpu/simd/simd_targets.h"
// After simd_targets.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The type of arithmetic on T.
template <class T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
using Tag = hn::ScalableTag<Compute<T>>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

// Elements of T in one vector.
template <class T>
HWY_INLINE std::size_t LaneCount() {
  return hn::Lanes(Tag<T>());
}

template <class T>
inline constexpr bool is_16_bit = sizeof(T) == 2;

using FloatTag = hn::ScalableTag<float>;
using BitsTag = hn::Rebind<std::uint32_t, FloatTag>;      // a float's bits
using HalfBitsTag = hn::Rebind<std::uint16_t, FloatTag>;  // as many 16-bit numbers
using FloatVec = hn::Vec<FloatTag>;
using HalfBitsVec = hn::Vec<HalfBitsTag>;

HWY_INLINE FloatVec FromBFloat16(HalfBitsVec bits) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(BitsTag(), bits)));
}

// Round to nearest even; NaN keeps its sign and upper bits and becomes quiet, as to_bfloat16()
// does.
HWY_INLINE HalfBitsVec ToBFloat16(FloatVec value) {
  const BitsTag d;
  const auto bits = hn::BitCast(d, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto even = hn::And(upper, hn::Set(d, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7fffu)), even));
  const auto quiet = hn::Or(upper, hn::Set(d, 0x0040u));
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(value));
  return hn::TruncateTo(HalfBitsTag(), hn::IfThenElse(is_nan, quiet, rounded));
}

// Processors from AVX2 on convert fp16 themselves; before, the conversions are integer arithmetic.
#undef TESSERA_NATIVE_FLOAT16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define TESSERA_NATIVE_FLOAT16 1
#else
#define TESSERA_NATIVE_FLOAT16 0
#endif

HWY_INLINE FloatVec FromFloat16(HalfBitsVec bits) {
#if TESSERA_NATIVE_FLOAT16
  return hn::PromoteTo(FloatTag(), hn::BitCast(hn::Rebind<hwy::float16_t, FloatTag>(), bits));
#else
  const BitsTag d;
  const auto wide = hn::PromoteTo(d, bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(d, 0x8000u)));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(d, 0x7fffu)));
  // Multiplying by 2^112 moves the exponent's bias and normalises subnormals, exactly.
  const FloatTag df;
  const auto scaled = hn::BitCast(d, hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p112f)));
  const auto special = hn::Gt(magnitude, hn::Set(d, (0x7bffu << 13)));  // Inf or NaN
  const auto widened = hn::Or(magnitude, hn::Set(d, 0x7f800000u));
  return hn::BitCast(df, hn::Or(sign, hn::IfThenElse(special, widened, scaled)));
#endif
}

// Round to nearest even; every NaN becomes the quiet NaN of its sign, as to_float16() does.
HWY_INLINE HalfBitsVec ToFloat16(FloatVec value) {
  const FloatTag df;
  const BitsTag d;
#if TESSERA_NATIVE_FLOAT16
  const auto quiet = hn::CopySign(hn::BitCast(df, hn::Set(d, 0x7fc00000u)), value);
  const auto clean = hn::IfThenElse(hn::IsNaN(value), quiet, value);
  const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, FloatTag>(), clean);
  return hn::BitCast(HalfBitsTag(), half);
#else
  const auto bits = hn::BitCast(d, value);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000u));
  const auto magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
  const auto even = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1u));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(d, 0xfffu)), even);
  auto result = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(d, 0x38000000u)));
  // Below 2^-14 the result is subnormal: adding 0.5 lets the adder round to a multiple of 2^-24.
  const auto shifted = hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f)));
  const auto subnormal = hn::Sub(shifted, hn::Set(d, 0x3f000000u));
  const auto signed_compare = [](auto a, auto b) HWY_ATTR {
    const hn::Rebind<std::int32_t, FloatTag> di;  // both below 2^31: the signed compare is native
    return hn::RebindMask(BitsTag(), hn::Lt(hn::BitCast(di, a), hn::BitCast(di, b)));
  };
  result = hn::IfThenElse(signed_compare(magnitude, hn::Set(d, 0x38800000u)), subnormal, result);
  result = hn::IfThenElse(signed_compare(hn::Set(d, 0x477fefffu), magnitude), hn::Set(d, 0x7c00u),
                          result);
  result = hn::IfThenElse(signed_compare(hn::Set(d, 0x7f800000u), magnitude), hn::Set(d, 0x7e00u),
                          result);
  return hn::TruncateTo(HalfBitsTag(), hn::Or(sign, result));
#endif
}

namespace detail {

template <class T>
HWY_INLINE FloatVec WidenBits(HalfBitsVec bits) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return FromBFloat16(bits);
  } else {
    static_assert(std::is_same_v<T, Float16>);
    return FromFloat16(bits);
  }
}

template <class T>
HWY_INLINE HalfBitsVec NarrowBits(FloatVec value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(value);
  } else {
    static_assert(std::is_same_v<T, Float16>);
    return ToFloat16(value);
  }
}

// 16-bit storage is read and written through its bits' type.
template <class T>
HWY_INLINE const std::uint16_t* BitsOf(const T* p) {
  return reinterpret_cast<const std::uint16_t*>(p);
}
template <class T>
HWY_INLINE std::uint16_t* BitsOf(T* p) {
  return reinterpret_cast<std::uint16_t*>(p);
}

// `count` elements, zeros above. Without per-element masks a short copy keeps within the array.
template <class D, class E = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const E* p, std::size_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN E buffer[hn::MaxLanes(d)] = {};
  std::memcpy(buffer, p, count * sizeof(E));
  return hn::Load(d, buffer);
#else
  return hn::MaskedLoad(hn::FirstN(d, count), d, p);
#endif
}

template <class D, class E = hn::TFromD<D>>
HWY_INLINE void StoreFirst(hn::Vec<D> value, D d, E* p, std::size_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN E buffer[hn::MaxLanes(d)];
  hn::Store(value, d, buffer);
  std::memcpy(p, buffer, count * sizeof(E));
#else
  hn::BlendedStore(value, hn::FirstN(d, count), d, p);
#endif
}

}  // namespace detail

// A whole vector from unaligned memory.
template <class T>
HWY_INLINE Vec<T> LoadVector(const T* p) {
  if constexpr (is_16_bit<T>) {
    return detail::WidenBits<T>(hn::LoadU(HalfBitsTag(), detail::BitsOf(p)));
  } else {
    return hn::LoadU(Tag<T>(), p);
  }
}

template <class T>
HWY_INLINE void StoreVector(Vec<T> value, T* p) {
  if constexpr (is_16_bit<T>) {
    hn::StoreU(detail::NarrowBits<T>(value), HalfBitsTag(), detail::BitsOf(p));
  } else {
    hn::StoreU(value, Tag<T>(), p);
  }
}

// The first `count` (fewer than a vector's) elements; the lanes above are zero.
template <class T>
HWY_INLINE Vec<T> LoadPartial(const T* p, std::size_t count) {
  if constexpr (is_16_bit<T>) {
    return detail::WidenBits<T>(detail::LoadFirst(HalfBitsTag(), detail::BitsOf(p), count));
  } else {
    return detail::LoadFirst(Tag<T>(), p, count);
  }
}

template <class T>
HWY_INLINE void StorePartial(Vec<T> value, T* p, std::size_t count) {
  if constexpr (is_16_bit<T>) {
    detail::StoreFirst(detail::NarrowBits<T>(value), HalfBitsTag(), detail::BitsOf(p), count);
  } else {
    detail::StoreFirst(value, Tag<T>(), p, count);
  }
}

// For loops with much arithmetic per vector, the processor does not look far enough ahead to hide
// the memory latency, so they prefetch. Measured on 2048x1536: bias and GELU in bf16 20 % faster.
inline constexpr std::size_t prefetch_bytes = 1024;

// Accessors for a loop body: whole vectors, and in the last step a partial one.
struct WholeVector {
  static constexpr bool whole = true;
  template <class T>
  HWY_INLINE Vec<T> Load(const T* p) const {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + prefetch_bytes, 0);
    return LoadVector(p);
  }
  template <class T>
  HWY_INLINE void Store(Vec<T> value, T* p) const {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + prefetch_bytes, 1);
    StoreVector(value, p);
  }
  // `value` where there is an element, `filler` in the lanes above the end.
  template <class V>
  HWY_INLINE V Keep(V value, V /*filler*/) const {
    return value;
  }
};

struct PartialVector {
  static constexpr bool whole = false;
  std::size_t count;
  template <class T>
  HWY_INLINE Vec<T> Load(const T* p) const {
    return LoadPartial(p, count);
  }
  template <class T>
  HWY_INLINE void Store(Vec<T> value, T* p) const {
    StorePartial(value, p, count);
  }
  template <class V>
  HWY_INLINE V Keep(V value, V filler) const {
    return hn::IfThenElse(hn::FirstN(hn::DFromV<V>(), count), value, filler);
  }
};

// Calls body(i, access) for i = 0, lanes, 2*lanes ... below n, where access is a WholeVector or,
// for the tail, a PartialVector:
//   ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR { access.Store(f(access.Load(x + i)),
//   out + i); });
// T decides the vector's lanes; arrays of other types may be used if their compute type is the
// same.
template <class T, class Body>
HWY_INLINE void ForEach(std::int64_t n, Body&& body) {
  const auto lanes = static_cast<std::int64_t>(LaneCount<T>());
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, WholeVector{});
  if (i < n) body(i, PartialVector{static_cast<std::size_t>(n - i)});
}

// The sum of a vector's lanes: adds the upper half to the lower one until one lane is left.
// Highway's own sum has a different order, and different bits, in each of its releases.
template <class V>
HWY_INLINE auto LaneSum(V value) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) == 1) {
    return hn::GetLane(value);
  } else {
    const hn::Half<decltype(d)> half;
    return LaneSum(hn::Add(hn::LowerHalf(half, value), hn::UpperHalf(half, value)));
  }
}

// The largest of a vector's lanes.
template <class V>
HWY_INLINE auto LaneMax(V value) {
  const hn::DFromV<V> d;
  return hn::GetLane(hn::MaxOfLanes(d, value));
}

// The lane-wise sum of the vectors term(i, access) over [0, n), in an order that depends only on n
// and the vector's width. Four parallel sums hide the addition's latency. In the tail, term must
// give zeros above the end (access.Keep).
template <class T, class Term>
HWY_INLINE Vec<T> SumTerms(std::int64_t n, Term&& term) {
  const auto lanes = static_cast<std::int64_t>(LaneCount<T>());
  auto sum0 = hn::Zero(Tag<T>());
  auto sum1 = sum0, sum2 = sum0, sum3 = sum0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    sum0 = hn::Add(sum0, term(i, WholeVector{}));
    sum1 = hn::Add(sum1, term(i + lanes, WholeVector{}));
    sum2 = hn::Add(sum2, term(i + 2 * lanes, WholeVector{}));
    sum3 = hn::Add(sum3, term(i + 3 * lanes, WholeVector{}));
  }
  for (; i + lanes <= n; i += lanes) sum0 = hn::Add(sum0, term(i, WholeVector{}));
  if (i < n) sum1 = hn::Add(sum1, term(i, PartialVector{static_cast<std::size_t>(n - i)}));
  return hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

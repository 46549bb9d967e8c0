// The loop of element-wise kernels: Map() computes out[i] = f(in0[i], in1[i], ...) two vectors at a
// time. Included by kernels once per instruction set, after simd-inl.h.
//
// Two neighbouring vectors of bf16 are read as one vector of 32-bit numbers: its upper halves are
// the odd elements, and its lower halves the even ones. Widening, rounding and packing then need no
// move between lanes, which costs more than the arithmetic of most functions. A tail is copied to a
// padded buffer and computed by the same code as the body, so the split of an array cannot change
// an element's bits.
#if defined(TESSERA_KERNELS_CPU_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_MAP_INL_H_
#undef TESSERA_KERNELS_CPU_MAP_INL_H_
#else
#define TESSERA_KERNELS_CPU_MAP_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// The elements of two vectors. bf16: the even and the odd ones. Other types: the lower and the
// upper ones.
template <class T>
struct Pair {
  Vec<T> first, second;
};

template <class T>
HWY_INLINE std::int64_t PairLanes() {
  return static_cast<std::int64_t>(2 * LaneCount<T>());
}

using HalvesTag = hn::Repartition<std::uint16_t, FloatTag>;

namespace detail {

// The float's bits with the bf16 in the upper half, rounded to nearest even. A NaN of bf16 has
// zeros below, and stays the same NaN.
HWY_INLINE hn::Vec<BitsTag> RoundToBFloat16(FloatVec value) {
  const BitsTag d;
  const auto bits = hn::BitCast(d, value);
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  return hn::Add(hn::Add(bits, hn::Set(d, 0x7fffu)), even);
}

}  // namespace detail

template <class T>
HWY_INLINE Pair<T> LoadPair(const T* p) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const BitsTag d;
    const auto bits = hn::BitCast(d, hn::LoadU(HalvesTag(), detail::BitsOf(p)));
    return {hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits)),
            hn::BitCast(FloatTag(), hn::And(bits, hn::Set(d, 0xffff0000u)))};
  } else {
    return {LoadVector(p), LoadVector(p + LaneCount<T>())};
  }
}

// bf16: a NaN must come from bf16 numbers or from arithmetic, which leave the lower half of its
// bits zero. StoreVector() takes any.
template <class T>
HWY_INLINE void StorePair(Pair<T> value, T* p) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const HalvesTag d;
    const auto even = hn::ShiftRight<16>(detail::RoundToBFloat16(value.first));
    const auto odd = detail::RoundToBFloat16(value.second);
    hn::StoreU(hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, even)), d, detail::BitsOf(p));
  } else {
    StoreVector(value.first, p);
    StoreVector(value.second, p + LaneCount<T>());
  }
}

// Prefetches what the loop reaches next, in lines of 64 bytes (see prefetch_bytes).
template <class T, int write>
HWY_INLINE void PrefetchPair(const T* p) {
  constexpr std::size_t bytes = 2 * hn::MaxLanes(Tag<T>()) * sizeof(T);
  for (std::size_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + prefetch_bytes + at, write);
  }
}

// Accessors for a loop body: whole pairs, and in the last step a part of one. LoadStream() and
// StoreStream() are for arrays that come from memory and not from the first-level cache.
struct WholePair {
  template <class T>
  HWY_INLINE Pair<T> LoadStream(const T* p) const {
    PrefetchPair<T, 0>(p);
    return LoadPair(p);
  }
  template <class T>
  HWY_INLINE void StoreStream(Pair<T> value, T* p) const {
    PrefetchPair<T, 1>(p);
    StorePair(value, p);
  }
  template <class T>
  HWY_INLINE Pair<T> Load(const T* p) const {
    return LoadPair(p);
  }
  template <class T>
  HWY_INLINE void Store(Pair<T> value, T* p) const {
    StorePair(value, p);
  }
  // `value` where there is an element, zeros above the end.
  template <class T>
  HWY_INLINE Pair<T> Keep(Pair<T> value) const {
    return value;
  }
};

struct PartialPair {
  std::size_t count;
  template <class T>
  using Buffer = T[2 * hn::MaxLanes(Tag<T>())];

  template <class T>
  HWY_INLINE Pair<T> Load(const T* p) const {
    HWY_ALIGN Buffer<T> buffer = {};
    std::memcpy(buffer, p, count * sizeof(T));
    return LoadPair(buffer);
  }
  template <class T>
  HWY_INLINE void Store(Pair<T> value, T* p) const {
    HWY_ALIGN Buffer<T> buffer;
    StorePair(value, buffer);
    std::memcpy(p, buffer, count * sizeof(T));
  }
  template <class T>
  HWY_INLINE Pair<T> LoadStream(const T* p) const {
    return Load(p);
  }
  template <class T>
  HWY_INLINE void StoreStream(Pair<T> value, T* p) const {
    Store(value, p);
  }
  template <class T>
  HWY_INLINE Pair<T> Keep(Pair<T> value) const {
    const Tag<T> d;
    const auto lane = hn::Iota(d, 0);
    const auto end = hn::Set(d, static_cast<Compute<T>>(count));
    if constexpr (std::is_same_v<T, BFloat16>) {
      const auto twice = hn::Add(lane, lane);
      return {hn::IfThenElseZero(hn::Lt(twice, end), value.first),
              hn::IfThenElseZero(hn::Lt(hn::Add(twice, hn::Set(d, 1)), end), value.second)};
    } else {
      const auto upper = hn::Add(lane, hn::Set(d, static_cast<Compute<T>>(hn::Lanes(d))));
      return {hn::IfThenElseZero(hn::Lt(lane, end), value.first),
              hn::IfThenElseZero(hn::Lt(upper, end), value.second)};
    }
  }
};

// Calls body(i, access) for i = 0, PairLanes(), 2*PairLanes() ... below n, where access is a
// WholePair or, for the tail, a PartialPair.
template <class T, class Body>
HWY_INLINE void ForEachPair(std::int64_t n, Body&& body) {
  const std::int64_t lanes = PairLanes<T>();
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, WholePair{});
  if (i < n) body(i, PartialPair{static_cast<std::size_t>(n - i)});
}

// body(0), body(1) ... with constants, so that arrays of vectors that they index stay in registers.
template <int count, class Body>
HWY_INLINE void Unrolled(Body&& body) {
  if constexpr (count > 0) {
    Unrolled<count - 1>(body);
    body(std::integral_constant<int, count - 1>{});
  }
}

// f of each vector of the pairs.
template <class T, class Function, class... Pairs>
HWY_INLINE Pair<T> Each(Function&& f, Pairs... in) {
  return {f(in.first...), f(in.second...)};
}

template <class T>
HWY_INLINE Pair<T> ZeroPair() {
  return {hn::Zero(Tag<T>()), hn::Zero(Tag<T>())};
}

template <class T>
HWY_INLINE Pair<T> AddPairs(Pair<T> a, Pair<T> b) {
  return {hn::Add(a.first, b.first), hn::Add(a.second, b.second)};
}

template <class T>
HWY_INLINE Pair<T> MulPairs(Pair<T> a, Pair<T> b) {
  return {hn::Mul(a.first, b.first), hn::Mul(a.second, b.second)};
}

template <class T>
HWY_INLINE Pair<T> MulAddPairs(Pair<T> a, Pair<T> b, Pair<T> sum) {
  return {hn::MulAdd(a.first, b.first, sum.first), hn::MulAdd(a.second, b.second, sum.second)};
}

template <class T>
HWY_INLINE Compute<T> PairSum(Pair<T> value) {
  return LaneSum(hn::Add(value.first, value.second));
}

// out[i] = f(in[i]...) for n elements; f takes and returns Vec<T>. `out` may equal an input.
//   Map(n, out, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, x, y);
template <class T, class Function, class... In>
HWY_INLINE void Map(std::int64_t n, T* out, Function&& f, const In*... in) {
  static_assert((std::is_same_v<T, In> && ...));
  ForEachPair<T>(n, [&](std::int64_t i, auto access)
                        HWY_ATTR { access.Store(Each<T>(f, access.Load(in + i)...), out + i); });
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

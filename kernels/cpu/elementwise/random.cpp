// Philox for a single block, and tensors filled with uniform and normal draws.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/random.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/philox-inl.h"
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kTile = 512;

// Everything below uses additions, multiplications, divisions and square roots of doubles in one
// order, so every processor draws the same bits. A C library's log and cos do not guarantee that.
using DoubleTag = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<DoubleTag>;
using BlockVec = hn::Vec<BlockTag>;

// An integer below 2^52 as a double, exactly.
HWY_INLINE DoubleVec ToDouble(BlockVec integer) {
  const DoubleTag d;
  const auto offset = hn::Set(d, 0x1p52);
  return hn::Sub(hn::BitCast(d, hn::Or(integer, hn::BitCast(BlockTag(), offset))), offset);
}

// coefficients[0] + x*(coefficients[1] + x*(...)).
template <std::size_t kTerms>
HWY_INLINE DoubleVec Polynomial(DoubleVec x, const double (&coefficients)[kTerms]) {
  const DoubleTag d;
  auto value = hn::Set(d, coefficients[kTerms - 1]);
  for (std::size_t i = kTerms - 1; i-- > 0;) {
    value = hn::Add(hn::Mul(value, x), hn::Set(d, coefficients[i]));
  }
  return value;
}

// log(x * 2^-32) for x in [1, 2^32]: x = 2^k * m with m in [sqrt(1/2), sqrt(2)), and the series of
// log(m) = 2*atanh((m-1)/(m+1)). The first omitted term is below 2^-50 of the sum.
HWY_INLINE DoubleVec LogOfFraction(DoubleVec x) {
  constexpr double kSeries[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7, 2.0 / 9,
                                2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17};
  constexpr double kLog2 = 0.69314718055994530942;
  constexpr std::uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;
  constexpr std::uint64_t kOne = 0x3ff0000000000000;
  const DoubleTag d;
  const BlockTag di;
  const auto shifted = hn::Add(hn::BitCast(di, x), hn::Set(di, kOne - kRootOfHalf));
  const auto biased = hn::ShiftRight<52>(shifted);  // k + 1023
  const auto fraction = hn::And(shifted, hn::Set(di, (std::uint64_t{1} << 52) - 1));
  const auto m = hn::BitCast(d, hn::Add(fraction, hn::Set(di, kRootOfHalf)));
  const auto one = hn::Set(d, 1.0);
  const auto s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const auto log_m = hn::Mul(s, Polynomial(hn::Mul(s, s), kSeries));
  const auto k = hn::Sub(ToDouble(biased), hn::Set(d, 1023.0 + 32.0));
  return hn::Add(hn::Mul(k, hn::Set(d, kLog2)), log_m);
}

// Cosine and sine of the angle turn/2^32 of a full circle. The quarter is split off exactly.
struct CosSin {
  DoubleVec cosine, sine;
};
HWY_INLINE CosSin CosSinOfTurn(BlockVec turn) {
  constexpr double kSine[] = {
      1.0,           -1.0 / 6,         1.0 / 120,          -1.0 / 5040,
      1.0 / 362880., -1.0 / 39916800., 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
  constexpr double kCosine[] = {1.0,
                                -0.5,
                                1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320.,
                                -1.0 / 3628800.,
                                1.0 / 479001600.0,
                                -1.0 / 87178291200.0,
                                1.0 / 20922789888000.0};
  constexpr double kRadians = 6.28318530717958647693 * 0x1p-32;
  const DoubleTag d;
  const BlockTag di;
  const auto quarter = hn::ShiftRight<30>(hn::Add(turn, hn::Set(di, std::uint64_t{1} << 29)));
  const auto rest = hn::Sub(ToDouble(turn), hn::Mul(ToDouble(quarter), hn::Set(d, 0x1p30)));
  const auto angle = hn::Mul(rest, hn::Set(d, kRadians));  // within +- pi/4
  const auto square = hn::Mul(angle, angle);
  const auto sine = hn::Mul(angle, Polynomial(square, kSine));
  const auto cosine = Polynomial(square, kCosine);
  // Quarters 0..3: (c, s), (-s, c), (-c, -s), (s, -c).
  const auto one = hn::Set(di, 1);
  const auto two = hn::Set(di, 2);
  const auto swap = hn::RebindMask(d, hn::Eq(hn::And(quarter, one), one));
  const auto sine_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(quarter, two)));
  const auto next = hn::Add(quarter, one);
  const auto cosine_sign = hn::BitCast(d, hn::ShiftLeft<62>(hn::And(next, two)));
  return {hn::Xor(hn::IfThenElse(swap, sine, cosine), cosine_sign),
          hn::Xor(hn::IfThenElse(swap, cosine, sine), sine_sign)};
}

// Box-Muller: words (0, 1) of a pair become elements (0, 1). `count` is rounded up to whole
// vectors.
HWY_INLINE void NormalDraws(const std::uint32_t* words, std::int64_t count, double* draws) {
  const DoubleTag d;
  const BlockTag di;
  const WordTag dw;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < count; i += 2 * lanes) {
    const auto pair = hn::BitCast(di, hn::LoadU(dw, words + i));
    const auto word0 = hn::And(pair, hn::Set(di, 0xffffffffu));
    const auto x = ToDouble(hn::Add(word0, hn::Set(di, 1)));
    const auto radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0), LogOfFraction(x)));
    const CosSin direction = CosSinOfTurn(hn::ShiftRight<32>(pair));
    hn::StoreInterleaved2(hn::Mul(radius, direction.cosine), hn::Mul(radius, direction.sine), d,
                          draws + i);
  }
}

template <class T>
HWY_INLINE T FromDouble(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

template <class T>
HWY_NOINLINE void FillTyped(const RandomFill& a, std::int64_t first, std::int64_t last) {
  PhiloxWords<kTile + 64> words;
  double draws[kTile + 64];
  for (std::int64_t tile = first; tile < last; tile += kTile) {
    const std::int64_t count = std::min(kTile, last - tile);
    const std::int64_t begin = a.first + tile;
    T* out = static_cast<T*>(a.out) + tile;
    if (a.distribution == Distribution::uniform) {
      const std::uint32_t* drawn = words.Generate(a.key, begin, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const double unit = static_cast<double>(drawn[i] >> 8) * 0x1p-24;
        out[i] = FromDouble<T>(a.a + (a.b - a.a) * unit);
      }
    } else {
      const std::int64_t odd = begin % 2;  // the tile begins with the second element of a pair
      const std::uint32_t* drawn = words.Generate(a.key, begin - odd, count + odd + 1);
      NormalDraws(drawn, count + odd, draws);
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = FromDouble<T>(a.a + a.b * draws[i + odd]);
      }
    }
  }
}

void FillRange(const RandomFill& a, std::int64_t first, std::int64_t last) {
  cpu::for_floating(a.dtype, "random_fill",
                    [&](auto tag) { FillTyped<typename decltype(tag)::type>(a, first, last); });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(FillRange);
}  // namespace

std::array<std::uint32_t, 4> philox(RandomKey key, std::uint64_t block) {
  std::array<std::uint32_t, 4> x{
      static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
      static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)};
  auto key0 = static_cast<std::uint32_t>(key.seed);
  auto key1 = static_cast<std::uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * x[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<std::uint32_t>(product1 >> 32) ^ x[1] ^ key0,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ x[3] ^ key1,
         static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return x;
}

void cpu::random_fill(const RandomFill& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.dtype), "random_fill: {} is not a floating type", name_of(a.dtype));
  TESSERA_REQUIRE(a.first >= 0, "random_fill: first element {} is negative", a.first);
  constexpr std::int64_t kGrain = 1 << 13;
  parallel_for(0, a.n, kGrain, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(FillRange)(a, first, last);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

// Vector exp, log, tanh, sigmoid and the normal distribution, compiled once per instruction set.
// float: polynomials, within a few units in the last place, NaN kept. double: the standard
// library's functions lane by lane, because fp64 is only for gradient checks, which need accuracy.
// Polynomials are minimax fits; each names its relative error before rounding.
// GELU, SiLU and their derivatives are accurate to 2e-7 of the largest value nearby. In bf16 every
// value above 3e-37 is the nearest number; below it may be 0. In fp32 the relative error grows with
// the exponent: at -5 GELU is 22 units in the last place off (36 without fused instructions), SiLU
// 4 (7). tests/kernels/elementwise/activation_accuracy_test.cpp.
#if defined(TESSERA_KERNELS_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_SIMD_MATH_INL_H_
#undef TESSERA_KERNELS_CPU_SIMD_MATH_INL_H_
#else
#define TESSERA_KERNELS_CPU_SIMD_MATH_INL_H_
#endif

#include <cmath>

#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

template <class V>
inline constexpr bool is_double_vector = std::is_same_v<hn::TFromV<V>, double>;

// f applied to each lane by scalar code.
template <class V, class Function>
HWY_INLINE V MapLanes(V x, Function f) {
  const hn::DFromV<V> d;
  HWY_ALIGN hn::TFromV<V> lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (auto& lane : lanes) lane = f(lane);
  return hn::Load(d, lanes);
}

template <class V>
HWY_INLINE V Constant(double value) {
  return hn::Set(hn::DFromV<V>(), static_cast<hn::TFromV<V>>(value));
}

// c0 + x*(c1 + x*(c2 + ...)).
template <class V>
HWY_INLINE V Polynomial(V /*x*/, double c) {
  return Constant<V>(c);
}
template <class V, class... Rest>
HWY_INLINE V Polynomial(V x, double c, Rest... rest) {
  return hn::MulAdd(Polynomial(x, rest...), x, Constant<V>(c));
}

namespace detail {

// x = n log(2) + r, |r| <= log(2)/2, together with 2^(n + bias - 127): bias 127 gives 2^n.
struct ReducedExponent {
  FloatVec r;
  FloatVec scale;
};

HWY_INLINE ReducedExponent ReduceExponent(FloatVec x, double bias) {
  // Adding 1.5*2^23 leaves round(x/log 2) in the low bits, with the exponent's bias added.
  const auto magic = Constant<FloatVec>(0x1.8p23 + bias);
  const auto biased = hn::MulAdd(x, Constant<FloatVec>(1.4426950408889634), magic);
  const auto n = hn::Sub(biased, magic);
  // log(2) in two parts; the first has so few bits that n times it is exact.
  auto r = hn::NegMulAdd(n, Constant<FloatVec>(0x1.62e4p-1), x);
  r = hn::NegMulAdd(n, Constant<FloatVec>(1.428606820309417e-6), r);
  return {r, hn::BitCast(FloatTag(), hn::ShiftLeft<23>(hn::BitCast(BitsTag(), biased)))};
}

// e^x for x in [-87.3, 89]: 0 below -87, Inf above 88.72.
HWY_INLINE FloatVec ExpInRange(FloatVec x) {
  const ReducedExponent reduced = ReduceExponent(x, 126.0);
  // 2 e^r, 3.1e-9. It is doubled because the scale is 2^(n-1): 2^n is not a float for the largest
  // x.
  const auto twice = Polynomial(reduced.r, 2.0, 2.0, 0.999999867504, 0.333330390498,
                                0.0833368008184, 0.0167377021238, 0.00276287247838);
  return hn::Mul(twice, reduced.scale);
}

// 2^(x rate), 9.2e-8, for products in [-126.5, 129.5): 0 below -125.5, Inf above 128. The product
// is not rounded where the processor has fused instructions.
HWY_INLINE FloatVec PowerOfTwo(FloatVec x, FloatVec rate) {
  // As in ReduceExponent() and ExpInRange(), with a base that needs no second part.
  const auto magic = Constant<FloatVec>(0x1.8p23 + 126.0);
  const auto biased = hn::MulAdd(x, rate, magic);
  const auto fraction = hn::MulSub(x, rate, hn::Sub(biased, magic));
  const auto scale = hn::BitCast(FloatTag(), hn::ShiftLeft<23>(hn::BitCast(BitsTag(), biased)));
  const auto twice = Polynomial(fraction, 2.0, 1.386293955198, 0.48044484170753, 0.1110146748694,
                                0.019343025279913, 0.0026529454280144);
  return hn::Mul(twice, scale);
}

}  // namespace detail

// e^min(x, limit). float: limit is at most 89; 0 below -87, where e^x nears the subnormal numbers.
template <class V>
HWY_INLINE V ExpUpTo(double limit, V x) {
  // The constants come first: x86's minimum and maximum return their second operand for NaN.
  const V bounded = hn::Min(Constant<V>(limit), x);
  if constexpr (is_double_vector<V>) {
    return MapLanes(bounded, [](double lane) { return std::exp(lane); });
  } else {
    return detail::ExpInRange(hn::Max(Constant<V>(-87.3), bounded));
  }
}

// float: Inf above 88.72.
template <class V>
HWY_INLINE V Exp(V x) {
  return ExpUpTo(is_double_vector<V> ? 1000.0 : 89.0, x);
}

// Exp for arguments that are never above 80.
template <class V>
HWY_INLINE V ExpOfNegative(V x) {
  if constexpr (is_double_vector<V>) {
    return Exp(x);
  } else {
    return detail::ExpInRange(hn::Max(Constant<V>(-87.3), x));
  }
}

// log(0) = -Inf, log of a negative number = NaN.
template <class V>
HWY_INLINE V Log(V x) {
  if constexpr (is_double_vector<V>) {
    return MapLanes(x, [](double lane) { return std::log(lane); });
  } else {
    const FloatTag df;
    const hn::Rebind<std::int32_t, FloatTag> di;
    // Subnormal numbers are scaled into the normal range.
    const auto subnormal = hn::Lt(x, Constant<V>(0x1p-126));
    const V scaled = hn::IfThenElse(subnormal, hn::Mul(x, Constant<V>(0x1p25)), x);
    // m in [sqrt(1/2), sqrt(2)): the exponent is counted from sqrt(1/2)'s bits.
    const auto offset = hn::Sub(hn::BitCast(di, scaled), hn::Set(di, 0x3f3504f3));
    const auto exponent = hn::ShiftRight<23>(offset);
    const V m = hn::BitCast(df, hn::Sub(hn::BitCast(di, scaled), hn::ShiftLeft<23>(exponent)));
    V e = hn::ConvertTo(df, exponent);
    e = hn::Sub(e, hn::IfThenElseZero(subnormal, Constant<V>(25.0)));
    // log m = 2 atanh(s), s = (m-1)/(m+1): 2s + s^3 Q(s^2), 1.7e-9.
    const V s = hn::Div(hn::Sub(m, Constant<V>(1.0)), hn::Add(m, Constant<V>(1.0)));
    const V z = hn::Mul(s, s);
    const V q = Polynomial(z, 0.666667797759, 0.39977078547, 0.298852065815);
    const V low = hn::MulAdd(e, Constant<V>(1.428606820309417e-6), hn::Mul(hn::Mul(s, z), q));
    const V result = hn::MulAdd(e, Constant<V>(0x1.62e4p-1), hn::Add(hn::Add(s, s), low));
    const V infinity = hn::BitCast(df, hn::Set(BitsTag(), 0x7f800000u));
    const V nan = hn::BitCast(df, hn::Set(BitsTag(), 0x7fc00000u));
    const V edge = hn::IfThenElse(hn::Eq(x, infinity), infinity, result);
    const V zero_edge = hn::IfThenElse(hn::Eq(x, Constant<V>(0.0)), hn::Neg(infinity), edge);
    return hn::IfThenElse(hn::Ge(x, Constant<V>(0.0)), zero_edge, nan);
  }
}

// s = 1 / (1 + o), and 1 - s = o s without cancellation. `odds`: o = e^-x or of another exponent.
// The bound keeps Inf, where s is 0, out of the product.
template <class V>
struct SigmoidPair {
  V value;
  V complement;
};

template <class V>
HWY_INLINE SigmoidPair<V> SigmoidOfOdds(V odds) {
  const V value = hn::Div(Constant<V>(1.0), hn::Add(Constant<V>(1.0), odds));
  const V bounded = hn::Min(Constant<V>(is_double_vector<V> ? 0x1p1000 : 0x1p126), odds);
  return {value, hn::Mul(bounded, value)};
}

// x within the range of LogisticOdds(). Past it the sigmoid is 0 or 1.
template <class V>
HWY_INLINE V LogisticRange(V x) {
  constexpr double least = is_double_vector<V> ? -700.0 : -89.5;
  constexpr double largest = is_double_vector<V> ? 700.0 : 87.5;
  return hn::Max(Constant<V>(least), hn::Min(Constant<V>(largest), x));
}

// e^-x, 9.2e-8: 0 above 87, Inf below -89 (fp64: the standard library's).
template <class V>
HWY_INLINE V LogisticOdds(V x) {
  if constexpr (is_double_vector<V>) {
    return Exp(hn::Neg(x));
  } else {
    return detail::PowerOfTwo(x, Constant<V>(-1.4426950408889634));
  }
}

template <class V>
HWY_INLINE SigmoidPair<V> SigmoidWithComplement(V x) {
  return SigmoidOfOdds(LogisticOdds(LogisticRange(x)));
}

template <class V>
HWY_INLINE V Sigmoid(V x) {
  return SigmoidWithComplement(x).value;
}

template <class V>
HWY_INLINE V Tanh(V x) {
  if constexpr (is_double_vector<V>) {
    return MapLanes(x, [](double lane) { return std::tanh(lane); });
  } else {
    // E = e^2|x| - 1 without cancellation: 2^n (e^r - 1) + (2^n - 1). Then tanh |x| = E / (E + 2).
    const V magnitude = hn::Abs(x);
    const V bounded = hn::Min(Constant<V>(40.0), hn::Add(magnitude, magnitude));
    const detail::ReducedExponent reduced = detail::ReduceExponent(bounded, 127.0);
    const V r = reduced.r;
    const V q = Polynomial(r, 0.499999933752, 0.166665195249, 0.0416684004092, 0.0083688510619,
                           0.00138143623919);
    const V small = hn::MulAdd(hn::Mul(r, r), q, r);
    const V e = hn::MulAdd(reduced.scale, small, hn::Sub(reduced.scale, Constant<V>(1.0)));
    return hn::CopySign(hn::Div(e, hn::Add(e, Constant<V>(2.0))), x);
  }
}

// A function and its derivative.
template <class V>
struct WithDerivative {
  V value;
  V derivative;
};

// x times its sigmoid. The derivative is s (1 + x (1 - s)); past the range the inner product is 0.
template <class V>
HWY_INLINE WithDerivative<V> SiluWithDerivative(V x) {
  const V bounded = LogisticRange(x);
  const SigmoidPair<V> s = SigmoidOfOdds(LogisticOdds(bounded));
  return {hn::Mul(x, s.value),
          hn::Mul(s.value, hn::MulAdd(bounded, s.complement, Constant<V>(1.0)))};
}

template <class V>
HWY_INLINE V Silu(V x) {
  return SiluWithDerivative(x).value;
}

// GELU by the tanh approximation: 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715
// x^3).
inline constexpr double gelu_twice_slope = 1.5957691216057308;  // 2 sqrt(2/pi)
inline constexpr double gelu_cubic = 0.044715;

// The derivative is s (1 + x (1 - s) 2u'). Past the bounds the sigmoid is 0 or 1; they keep x^3
// finite, and 2u within the range of the exponential.
template <class V>
HWY_INLINE WithDerivative<V> GeluTanhWithDerivative(V x) {
  constexpr double least = is_double_vector<V> ? -40.0 : -10.1;
  constexpr double largest = is_double_vector<V> ? 40.0 : 10.0;
  const V bounded = hn::Max(Constant<V>(least), hn::Min(Constant<V>(largest), x));
  const V square = hn::Mul(bounded, bounded);
  V odds;
  if constexpr (is_double_vector<V>) {
    const V minus_inner = hn::MulAdd(square, Constant<V>(-gelu_twice_slope * gelu_cubic),
                                     Constant<V>(-gelu_twice_slope));
    odds = ExpUpTo(700.0, hn::Mul(bounded, minus_inner));
  } else {
    constexpr double rate = -gelu_twice_slope * 1.4426950408889634;
    odds = detail::PowerOfTwo(
        bounded, hn::MulAdd(square, Constant<V>(rate * gelu_cubic), Constant<V>(rate)));
  }
  const SigmoidPair<V> s = SigmoidOfOdds(odds);
  const V inner_slope = hn::MulAdd(square, Constant<V>(3.0 * gelu_twice_slope * gelu_cubic),
                                   Constant<V>(gelu_twice_slope));
  const V growth = hn::Mul(bounded, inner_slope);
  return {hn::Mul(x, s.value),
          hn::Mul(s.value, hn::MulAdd(growth, s.complement, Constant<V>(1.0)))};
}

template <class V>
HWY_INLINE V GeluTanh(V x) {
  return GeluTanhWithDerivative(x).value;
}

// Exact GELU: x times the normal distribution's function, whose derivative is that function plus x
// times the density.
template <class V>
HWY_INLINE WithDerivative<V> GeluErfWithDerivative(V x) {
  if constexpr (is_double_vector<V>) {
    const V cumulative =
        MapLanes(x, [](double lane) { return 0.5 * std::erfc(lane * -0.7071067811865476); });
    // Beyond 40 the density is 0; the bound keeps x times it from being Inf times 0.
    const V bounded = hn::Max(Constant<V>(-40.0), hn::Min(Constant<V>(40.0), x));
    const V density = hn::Mul(ExpOfNegative(hn::Mul(hn::Mul(bounded, bounded), Constant<V>(-0.5))),
                              Constant<V>(0.3989422804014327));
    return {hn::Mul(x, cumulative), hn::MulAdd(bounded, density, cumulative)};
  } else {
    // With a = |x|, the tail below -a over e^(-a^2/2) is y P(y), y = 1/(1 + 0.35 a), 3.2e-8. Past
    // the bound the exponential would leave its range.
    const V a = hn::Min(Constant<V>(13.2), hn::Abs(x));
    const V exponential = detail::PowerOfTwo(hn::Mul(a, a), Constant<V>(-0.5 * 1.4426950408889634));
    const V one = Constant<V>(1.0);
    const V y = hn::Div(one, hn::MulAdd(a, Constant<V>(0.35), one));
    const V p = Polynomial(y, 0.139621404402, 0.1398618674955, 0.1198328865225, 0.105507915034,
                           -0.02310958681155, 0.1591737400605, -0.2557138332275, 0.1439714679005,
                           -0.0291458777554);
    const V ratio = hn::Mul(y, p);
    const V value = hn::NegMulAdd(hn::Mul(a, exponential), ratio, hn::Max(Constant<V>(0.0), x));
    // The derivative at -a; that at a is 1 minus it.
    const V below = hn::Mul(exponential, hn::NegMulAdd(a, Constant<V>(0.3989422804014327), ratio));
    return {value, hn::IfThenElse(hn::Lt(x, Constant<V>(0.0)), below, hn::Sub(one, below))};
  }
}

template <class V>
HWY_INLINE V GeluErf(V x) {
  return GeluErfWithDerivative(x).value;
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

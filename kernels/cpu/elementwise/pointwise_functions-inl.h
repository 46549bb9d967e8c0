// The functions of PointwiseOp on vectors, and on single integers. Truth is 1, falsehood 0.
#if defined(TESSERA_KERNELS_CPU_POINTWISE_FUNCTIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_POINTWISE_FUNCTIONS_INL_H_
#undef TESSERA_KERNELS_CPU_POINTWISE_FUNCTIONS_INL_H_
#else
#define TESSERA_KERNELS_CPU_POINTWISE_FUNCTIONS_INL_H_
#endif

#include <cmath>

#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/pointwise.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// f applied lane by lane, for functions whose whole range of arguments matters more than their
// speed.
template <class V, class Function>
HWY_INLINE V MapTwo(V x, V y, Function f) {
  const hn::DFromV<V> d;
  HWY_ALIGN hn::TFromV<V> first[hn::MaxLanes(d)];
  HWY_ALIGN hn::TFromV<V> second[hn::MaxLanes(d)];
  hn::Store(x, d, first);
  hn::Store(y, d, second);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) first[i] = f(first[i], second[i]);
  return hn::Load(d, first);
}
template <class V>
HWY_INLINE V Power(V x, V y) {
  return MapTwo(x, y, [](auto a, auto b) { return std::pow(a, b); });
}
template <class V>
HWY_INLINE V Sine(V x) {
  return MapLanes(x, [](auto a) { return std::sin(a); });
}
template <class V>
HWY_INLINE V Cosine(V x) {
  return MapLanes(x, [](auto a) { return std::cos(a); });
}

// log(1 + e) for e >= 0: the quotient makes up for what 1 + e rounds away.
template <class V>
HWY_INLINE V LogOnePlus(V e) {
  const V one = Constant<V>(1.0);
  const V sum = hn::Add(one, e);
  const V kept = hn::Sub(sum, one);
  const auto tiny = hn::Eq(kept, hn::Zero(hn::DFromV<V>()));
  const V quotient = hn::Div(e, hn::IfThenElse(tiny, one, kept));
  return hn::IfThenElse(tiny, e, hn::Mul(Log(sum), quotient));
}

template <class V>
HWY_INLINE V Softplus(V x, V beta, V threshold) {
  const V scaled = hn::Mul(x, beta);
  const V e = ExpOfNegative(hn::Neg(hn::Abs(scaled)));
  const V positive =
      hn::IfThenElse(hn::Gt(scaled, hn::Zero(hn::DFromV<V>())), scaled, hn::Zero(hn::DFromV<V>()));
  const V soft = hn::Div(hn::Add(positive, LogOnePlus(e)), beta);
  const auto linear = hn::Or(hn::Gt(scaled, threshold), hn::IsNaN(x));
  return hn::IfThenElse(linear, x, soft);
}

template <class M, class V>
HWY_INLINE V Truth(M mask, V /*like*/) {
  return hn::IfThenElseZero(mask, Constant<V>(1.0));
}

template <PointwiseOp op, class V>
HWY_INLINE V FunctionOfOne(V a) {
  const V zero = hn::Zero(hn::DFromV<V>());
  const V one = Constant<V>(1.0);
  if constexpr (op == PointwiseOp::absolute) return hn::Abs(a);
  if constexpr (op == PointwiseOp::sign) {
    const V magnitude = hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElseZero(hn::Ne(a, zero), one));
    return hn::CopySign(magnitude, a);
  }
  if constexpr (op == PointwiseOp::reciprocal) return hn::Div(one, a);
  if constexpr (op == PointwiseOp::reciprocal_sqrt) return hn::Div(one, hn::Sqrt(a));
  if constexpr (op == PointwiseOp::sine) return Sine(a);
  if constexpr (op == PointwiseOp::cosine) return Cosine(a);
  if constexpr (op == PointwiseOp::logical_not) return Truth(hn::Eq(a, zero), a);
}

template <PointwiseOp op, class V>
HWY_INLINE V FunctionOfTwo(V a, V b) {
  const V zero = hn::Zero(hn::DFromV<V>());
  const auto is_true = [zero](V x) HWY_ATTR { return hn::Ne(x, zero); };
  if constexpr (op == PointwiseOp::add) return hn::Add(a, b);
  if constexpr (op == PointwiseOp::subtract) return hn::Sub(a, b);
  if constexpr (op == PointwiseOp::multiply) return hn::Mul(a, b);
  if constexpr (op == PointwiseOp::divide) return hn::Div(a, b);
  if constexpr (op == PointwiseOp::minimum) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
  if constexpr (op == PointwiseOp::maximum) {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
  if constexpr (op == PointwiseOp::power) return Power(a, b);
  if constexpr (op == PointwiseOp::absolute_gradient) {
    return hn::Mul(a, FunctionOfOne<PointwiseOp::sign>(b));
  }
  if constexpr (op == PointwiseOp::reciprocal_gradient) return hn::Neg(hn::Div(a, hn::Mul(b, b)));
  if constexpr (op == PointwiseOp::reciprocal_sqrt_gradient) {
    return hn::Div(hn::Mul(a, Constant<V>(-0.5)), hn::Mul(b, hn::Sqrt(b)));
  }
  if constexpr (op == PointwiseOp::sine_gradient) return hn::Mul(a, Cosine(b));
  if constexpr (op == PointwiseOp::cosine_gradient) return hn::Neg(hn::Mul(a, Sine(b)));
  if constexpr (op == PointwiseOp::equal) return Truth(hn::Eq(a, b), a);
  if constexpr (op == PointwiseOp::not_equal) {  // Highway's Ne is false for NaN with AVX-512
    return hn::IfThenZeroElse(hn::Eq(a, b), Constant<V>(1.0));
  }
  if constexpr (op == PointwiseOp::less) return Truth(hn::Lt(a, b), a);
  if constexpr (op == PointwiseOp::less_equal) return Truth(hn::Le(a, b), a);
  if constexpr (op == PointwiseOp::greater) return Truth(hn::Gt(a, b), a);
  if constexpr (op == PointwiseOp::greater_equal) return Truth(hn::Ge(a, b), a);
  if constexpr (op == PointwiseOp::logical_and) return Truth(hn::And(is_true(a), is_true(b)), a);
  if constexpr (op == PointwiseOp::logical_or) return Truth(hn::Or(is_true(a), is_true(b)), a);
}

template <PointwiseOp op, class V>
HWY_INLINE V FunctionOfThree(V a, V b, V c) {
  const V zero = hn::Zero(hn::DFromV<V>());
  const V one = Constant<V>(1.0);
  if constexpr (op == PointwiseOp::softplus) return Softplus(a, b, c);
  if constexpr (op == PointwiseOp::clamp) {
    const V raised = hn::IfThenElse(hn::Lt(a, b), b, a);
    return hn::IfThenElse(hn::Gt(raised, c), c, raised);
  }
  if constexpr (op == PointwiseOp::minimum_gradient) {
    const V half = hn::IfThenElse(hn::Eq(b, c), hn::Mul(a, Constant<V>(0.5)), a);
    return hn::IfThenZeroElse(hn::Gt(b, c), half);
  }
  if constexpr (op == PointwiseOp::maximum_gradient) {
    const V half = hn::IfThenElse(hn::Eq(b, c), hn::Mul(a, Constant<V>(0.5)), a);
    return hn::IfThenZeroElse(hn::Lt(b, c), half);
  }
  if constexpr (op == PointwiseOp::divisor_gradient) {
    return hn::Neg(hn::Div(hn::Mul(hn::Div(a, c), b), c));
  }
  if constexpr (op == PointwiseOp::power_gradient) {
    return hn::IfThenZeroElse(hn::Eq(c, zero), hn::Mul(a, hn::Mul(c, Power(b, hn::Sub(c, one)))));
  }
  if constexpr (op == PointwiseOp::power_exponent_gradient) {
    const auto flat = hn::And(hn::Eq(b, zero), hn::Ge(c, zero));
    return hn::IfThenZeroElse(flat, hn::Mul(a, hn::Mul(Power(b, c), Log(b))));
  }
  if constexpr (op == PointwiseOp::select) return hn::IfThenElse(hn::Ne(a, zero), b, c);
}

template <PointwiseOp op, class V>
HWY_INLINE V FunctionOfFour(V a, V b, V c, V d) {
  if constexpr (op == PointwiseOp::softplus_gradient) {
    const V scaled = hn::Mul(b, c);
    return hn::IfThenElse(hn::Gt(scaled, d), a, hn::Mul(a, Sigmoid(scaled)));
  }
  if constexpr (op == PointwiseOp::clamp_gradient) {
    return hn::IfThenElseZero(hn::And(hn::Ge(b, c), hn::Le(b, d)), a);
  }
}

template <PointwiseOp op>
HWY_INLINE std::int64_t FunctionOfIntegers(std::int64_t a, std::int64_t b, std::int64_t c) {
  if constexpr (op == PointwiseOp::equal) return a == b;
  if constexpr (op == PointwiseOp::not_equal) return a != b;
  if constexpr (op == PointwiseOp::less) return a < b;
  if constexpr (op == PointwiseOp::less_equal) return a <= b;
  if constexpr (op == PointwiseOp::greater) return a > b;
  if constexpr (op == PointwiseOp::greater_equal) return a >= b;
  if constexpr (op == PointwiseOp::select) return a != 0 ? b : c;
  if constexpr (op == PointwiseOp::logical_and) return a != 0 && b != 0;
  if constexpr (op == PointwiseOp::logical_or) return a != 0 || b != 0;
  if constexpr (op == PointwiseOp::logical_not) return a == 0;
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

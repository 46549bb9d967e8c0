// Unary functions and their backward.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/unary.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/map-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

template <UnaryOp op, class V>
HWY_INLINE V Value(V x) {
  if constexpr (op == UnaryOp::negate) return hn::Neg(x);
  if constexpr (op == UnaryOp::relu) {  // NaN passes
    return hn::IfThenZeroElse(hn::Lt(x, Constant<V>(0.0)), x);
  }
  if constexpr (op == UnaryOp::gelu_erf) return GeluErf(x);
  if constexpr (op == UnaryOp::gelu_tanh) return GeluTanh(x);
  if constexpr (op == UnaryOp::silu) return Silu(x);
  if constexpr (op == UnaryOp::tanh) return Tanh(x);
  if constexpr (op == UnaryOp::sigmoid) return Sigmoid(x);
  if constexpr (op == UnaryOp::exp) return Exp(x);
  if constexpr (op == UnaryOp::log) return Log(x);
  if constexpr (op == UnaryOp::sqrt) return hn::Sqrt(x);
  if constexpr (op == UnaryOp::square) return hn::Mul(x, x);
}

// dout * f'(x).
template <UnaryOp op, class V>
HWY_INLINE V Gradient(V dout, V x) {
  if constexpr (op == UnaryOp::negate) return hn::Neg(dout);
  if constexpr (op == UnaryOp::relu) {
    return hn::IfThenZeroElse(hn::Le(x, Constant<V>(0.0)), dout);
  }
  if constexpr (op == UnaryOp::gelu_erf) return hn::Mul(dout, GeluErfWithDerivative(x).derivative);
  if constexpr (op == UnaryOp::gelu_tanh) {
    return hn::Mul(dout, GeluTanhWithDerivative(x).derivative);
  }
  if constexpr (op == UnaryOp::silu) return hn::Mul(dout, SiluWithDerivative(x).derivative);
  if constexpr (op == UnaryOp::tanh) {
    const V t = Tanh(x);
    return hn::Mul(dout, hn::NegMulAdd(t, t, Constant<V>(1.0)));
  }
  if constexpr (op == UnaryOp::sigmoid) {
    const SigmoidPair<V> s = SigmoidWithComplement(x);
    return hn::Mul(dout, hn::Mul(s.value, s.complement));
  }
  if constexpr (op == UnaryOp::exp) return hn::Mul(dout, Exp(x));
  if constexpr (op == UnaryOp::log) return hn::Div(dout, x);
  if constexpr (op == UnaryOp::sqrt) {
    return hn::Div(hn::Mul(dout, Constant<V>(0.5)), hn::Sqrt(x));
  }
  if constexpr (op == UnaryOp::square) return hn::Mul(dout, hn::Add(x, x));
}

template <UnaryOp op, class T>
void ForwardRange(const Unary& a, std::int64_t first, std::int64_t last) {
  const auto* x = static_cast<const T*>(a.x) + first;
  auto* out = static_cast<T*>(a.out) + first;
  Map(
      last - first, out, [](auto value) HWY_ATTR { return Value<op>(value); }, x);
}

template <UnaryOp op, class T>
void BackwardRange(const UnaryBackward& a, std::int64_t first, std::int64_t last) {
  const auto* dout = static_cast<const T*>(a.dout) + first;
  const auto* x = static_cast<const T*>(a.x) + first;
  auto* dx = static_cast<T*>(a.dx) + first;
  if (a.accumulate) {
    const auto* sum = dx;
    Map(
        last - first, dx,
        [](auto d, auto value, auto old) HWY_ATTR { return hn::Add(old, Gradient<op>(d, value)); },
        dout, x, sum);
  } else {
    Map(
        last - first, dx, [](auto d, auto value) HWY_ATTR { return Gradient<op>(d, value); }, dout,
        x);
  }
}

void UnaryForward(const Unary& a) {
  cpu::for_floating(a.dtype, "unary", [&](auto tag) {
    for_unary_op(a.op, [&](auto op) {
      parallel_for(0, a.n, cpu::parallel_grain, [&](std::int64_t first, std::int64_t last) {
        ForwardRange<decltype(op)::value, typename decltype(tag)::type>(a, first, last);
      });
    });
  });
}

void UnaryGradient(const UnaryBackward& a) {
  cpu::for_floating(a.dtype, "unary_backward", [&](auto tag) {
    for_unary_op(a.op, [&](auto op) {
      parallel_for(0, a.n, cpu::parallel_grain, [&](std::int64_t first, std::int64_t last) {
        BackwardRange<decltype(op)::value, typename decltype(tag)::type>(a, first, last);
      });
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(UnaryForward);
HWY_EXPORT(UnaryGradient);

void require_known_unary(UnaryOp op) {
  TESSERA_REQUIRE(op <= UnaryOp::square, "unary: unknown operation {}", static_cast<int>(op));
}

}  // namespace

void cpu::unary(const Unary& a, Queue) {
  require_known_unary(a.op);
  HWY_DYNAMIC_DISPATCH(UnaryForward)(a);
}
void cpu::unary_backward(const UnaryBackward& a, Queue) {
  require_known_unary(a.op);
  HWY_DYNAMIC_DISPATCH(UnaryGradient)(a);
}

}  // namespace tessera::kernels
#endif

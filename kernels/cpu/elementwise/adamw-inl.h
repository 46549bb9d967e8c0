// AdamW's arithmetic on vectors, for all kernels of it. Included by kernels once per instruction
// set, after simd-inl.h.
#if defined(TESSERA_KERNELS_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_ADAMW_INL_H_
#undef TESSERA_KERNELS_CPU_ADAMW_INL_H_
#else
#define TESSERA_KERNELS_CPU_ADAMW_INL_H_
#endif

#include <cmath>

#include "kernels/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// The scalars of AdamW in the parameter's type T, and one vector's step.
template <class T>
struct AdamWVectors {
  static constexpr hn::ScalableTag<T> d{};
  Vec<T> grad_scale, decay, beta1, beta2, rest1, rest2, step, root_correction2, eps;

  template <class Arguments>
  HWY_INLINE explicit AdamWVectors(const Arguments& a)
      : grad_scale(hn::Set(d, static_cast<T>(a.grad_scale))),
        decay(hn::Set(d, static_cast<T>(a.lr * a.weight_decay))),
        beta1(hn::Set(d, static_cast<T>(a.beta1))),
        beta2(hn::Set(d, static_cast<T>(a.beta2))),
        rest1(hn::Set(d, static_cast<T>(1.0 - a.beta1))),
        rest2(hn::Set(d, static_cast<T>(1.0 - a.beta2))),
        step(hn::Set(d, static_cast<T>(a.lr / a.correction1))),
        root_correction2(hn::Set(d, static_cast<T>(std::sqrt(a.correction2)))),
        eps(hn::Set(d, static_cast<T>(a.eps))) {}

  HWY_INLINE void Step(Vec<T>& param, Vec<T> grad, Vec<T>& m, Vec<T>& v) const {
    const auto g = hn::Mul(grad, grad_scale);
    param = hn::Sub(param, hn::Mul(decay, param));
    m = hn::Add(hn::Mul(beta1, m), hn::Mul(rest1, g));
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(hn::Mul(rest2, g), g));
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), root_correction2), eps);
    param = hn::Sub(param, hn::Div(hn::Mul(step, m), denominator));
  }
};

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

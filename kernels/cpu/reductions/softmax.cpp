// Row-wise softmax, forward and backward.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/softmax.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/cpu/simd/softmax-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Computes the exponentials again for the output, which may be narrower than they are, and may be
// x.
template <class T>
void SoftmaxRow(const T* x, T* out, std::int64_t n) {
  const Tag<T> d;
  const auto sum = SumOfExponentials(x, n);
  const auto shift = hn::Set(d, sum.shift);
  const auto inverse = hn::Set(d, Compute<T>{1} / sum.sum);
  ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    access.Store(hn::Mul(ExpOfNegative(hn::Sub(access.Load(x + i), shift)), inverse), out + i);
  });
}

template <class T>
void SoftmaxBackwardRow(const T* dout, const T* out, T* dx, std::int64_t n) {
  const auto products = SumTerms<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    return hn::Mul(access.Load(dout + i), access.Load(out + i));
  });
  const auto dot = hn::Set(Tag<T>(), LaneSum(products));
  ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    access.Store(hn::Mul(access.Load(out + i), hn::Sub(access.Load(dout + i), dot)), dx + i);
  });
}

void SoftmaxRows(const SoftmaxForward& a) {
  cpu::for_floating(a.dtype, "softmax_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* x = static_cast<const T*>(a.x);
    auto* out = static_cast<T*>(a.out);
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) SoftmaxRow(x + r * a.dim, out + r * a.dim, a.dim);
    });
  });
}

void SoftmaxGradientRows(const SoftmaxBackward& a) {
  cpu::for_floating(a.dtype, "softmax_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* dout = static_cast<const T*>(a.dout);
    const auto* out = static_cast<const T*>(a.out);
    auto* dx = static_cast<T*>(a.dx);
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const std::int64_t start = r * a.dim;
        SoftmaxBackwardRow(dout + start, out + start, dx + start, a.dim);
      }
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(SoftmaxRows);
HWY_EXPORT(SoftmaxGradientRows);

void cpu::softmax_forward(const SoftmaxForward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SoftmaxRows)(a);
}
void cpu::softmax_backward(const SoftmaxBackward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradientRows)(a);
}

}  // namespace tessera::kernels
#endif

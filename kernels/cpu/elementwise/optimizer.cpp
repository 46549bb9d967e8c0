// AdamW, Lion and SGD over flat segments: each element is read and written once, and depends on no
// other.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/optimizer.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/elementwise/adamw-inl.h"
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/elementwise/decay_ranges.h"
#include "kernels/cpu/elementwise/wide_gradient.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Products and sums are not fused, so processors without fused instructions compute the same steps.

// The scalars of Lion in the parameter's type T, and one vector's step.
template <class T>
struct LionVectors {
  static constexpr hn::ScalableTag<T> d{};
  Vec<T> grad_scale, decay, beta1, beta2, rest1, rest2, lr;

  HWY_INLINE explicit LionVectors(const LionStep& a)
      : grad_scale(hn::Set(d, static_cast<T>(a.grad_scale))),
        decay(hn::Set(d, static_cast<T>(a.lr * a.weight_decay))),
        beta1(hn::Set(d, static_cast<T>(a.beta1))),
        beta2(hn::Set(d, static_cast<T>(a.beta2))),
        rest1(hn::Set(d, static_cast<T>(1.0 - a.beta1))),
        rest2(hn::Set(d, static_cast<T>(1.0 - a.beta2))),
        lr(hn::Set(d, static_cast<T>(a.lr))) {}

  HWY_INLINE void Step(Vec<T>& param, Vec<T> grad, Vec<T>& m) const {
    const auto g = hn::Mul(grad, grad_scale);
    param = hn::Sub(param, hn::Mul(decay, param));
    const auto c = hn::Add(hn::Mul(beta1, m), hn::Mul(rest1, g));
    m = hn::Add(hn::Mul(beta2, m), hn::Mul(rest2, g));
    // lr * sign(c); where c is 0 or NaN: c.
    const auto signed_lr = hn::CopySign(lr, c);
    param = hn::Sub(param, hn::IfThenElse(hn::Gt(hn::Abs(c), hn::Zero(d)), signed_lr, c));
  }
};

template <class T>
struct SgdVectors {
  static constexpr hn::ScalableTag<T> d{};
  Vec<T> grad_scale, lr, momentum, rest, weight_decay;

  HWY_INLINE explicit SgdVectors(const SgdStep& a)
      : grad_scale(hn::Set(d, static_cast<T>(a.grad_scale))),
        lr(hn::Set(d, static_cast<T>(a.lr))),
        momentum(hn::Set(d, static_cast<T>(a.momentum))),
        rest(hn::Set(d, static_cast<T>(1.0 - a.dampening))),
        weight_decay(hn::Set(d, static_cast<T>(a.weight_decay))) {}
};

// Stands for the type of a missing copy.
struct NoCopy {};

// `copy` is null when Copy is NoCopy.
template <class T, class Grad, class Copy>
HWY_NOINLINE void AdamWTyped(const AdamWStep& a, const Grad* grad, Copy* copy, std::int64_t first,
                             std::int64_t last) {
  const AdamWVectors<T> vectors(a);
  T* param = static_cast<T*>(a.param) + first;
  T* m = static_cast<T*>(a.m) + first;
  T* v = static_cast<T*>(a.v) + first;
  ForEach<T>(last - first, [&](std::int64_t i, auto access) HWY_ATTR {
    auto p = access.Load(param + i);
    auto m_i = access.Load(m + i);
    auto v_i = access.Load(v + i);
    vectors.Step(p, access.Load(grad + i), m_i, v_i);
    access.Store(p, param + i);
    access.Store(m_i, m + i);
    access.Store(v_i, v + i);
    if constexpr (!std::is_same_v<Copy, NoCopy>) access.Store(p, copy + i);
  });
}

template <class T, class Grad, class Copy>
HWY_NOINLINE void LionTyped(const LionStep& a, const Grad* grad, Copy* copy, std::int64_t first,
                            std::int64_t last) {
  const LionVectors<T> vectors(a);
  T* param = static_cast<T*>(a.param) + first;
  T* m = static_cast<T*>(a.m) + first;
  ForEach<T>(last - first, [&](std::int64_t i, auto access) HWY_ATTR {
    auto p = access.Load(param + i);
    auto m_i = access.Load(m + i);
    vectors.Step(p, access.Load(grad + i), m_i);
    access.Store(p, param + i);
    access.Store(m_i, m + i);
    if constexpr (!std::is_same_v<Copy, NoCopy>) access.Store(p, copy + i);
  });
}

template <class T, class Grad, class Copy>
HWY_NOINLINE void SgdTyped(const SgdStep& a, const Grad* grad, Copy* copy, std::int64_t first,
                           std::int64_t last) {
  const SgdVectors<T> s(a);
  const bool has_momentum = a.momentum_buffer != nullptr && a.momentum != 0;
  T* param = static_cast<T*>(a.param) + first;
  T* buffer = has_momentum ? static_cast<T*>(a.momentum_buffer) + first : nullptr;
  ForEach<T>(last - first, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto p = access.Load(param + i);
    const auto g =
        hn::Add(hn::Mul(access.Load(grad + i), s.grad_scale), hn::Mul(s.weight_decay, p));
    auto direction = g;
    if (has_momentum) {
      auto b = g;
      if (!a.first_step) {
        b = hn::Add(hn::Mul(s.momentum, access.Load(buffer + i)), hn::Mul(s.rest, g));
      }
      access.Store(b, buffer + i);
      direction = a.nesterov ? hn::Add(g, hn::Mul(s.momentum, b)) : b;
    }
    const auto updated = hn::Sub(p, hn::Mul(s.lr, direction));
    access.Store(updated, param + i);
    if constexpr (!std::is_same_v<Copy, NoCopy>) access.Store(updated, copy + i);
  });
}

template <class T, class Grad, class Copy>
HWY_INLINE void StepTyped(const AdamWStep& a, const Grad* grad, Copy* copy, std::int64_t first,
                          std::int64_t last) {
  AdamWTyped<T>(a, grad, copy, first, last);
}
template <class T, class Grad, class Copy>
HWY_INLINE void StepTyped(const LionStep& a, const Grad* grad, Copy* copy, std::int64_t first,
                          std::int64_t last) {
  LionTyped<T>(a, grad, copy, first, last);
}
template <class T, class Grad, class Copy>
HWY_INLINE void StepTyped(const SgdStep& a, const Grad* grad, Copy* copy, std::int64_t first,
                          std::int64_t last) {
  SgdTyped<T>(a, grad, copy, first, last);
}

// fp32 parameters: the gradient and the copy may have any type that is computed in float.
template <class Grad, class Step>
void StepFloatGrad(const Step& a, std::int64_t first, std::int64_t last) {
  const Grad* grad = static_cast<const Grad*>(a.grad) + first;
  if (a.copy == nullptr) {
    StepTyped<float>(a, grad, static_cast<NoCopy*>(nullptr), first, last);
  } else if (a.copy_dtype == DType::float32) {
    StepTyped<float>(a, grad, static_cast<float*>(a.copy) + first, first, last);
  } else if (a.copy_dtype == DType::bfloat16) {
    StepTyped<float>(a, grad, static_cast<BFloat16*>(a.copy) + first, first, last);
  } else {
    StepTyped<float>(a, grad, static_cast<Float16*>(a.copy) + first, first, last);
  }
}

template <class Narrow>
void NarrowTile(const double* from, std::int64_t first, std::int64_t count, void* to) {
  Narrow* x = static_cast<Narrow*>(to) + first;
  for (std::int64_t i = 0; i < count; ++i) x[i] = from_float<Narrow>(static_cast<float>(from[i]));
}

// fp64 parameters, which are only for checks of gradients and convergence: narrower gradients and
// copies pass through a tile.
template <class Step>
void StepDouble(const Step& a, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kTile = 1024;
  double grad[kTile];
  for (std::int64_t first = begin; first < end; first += kTile) {
    const std::int64_t count = std::min(kTile, end - first);
    widen_gradient(a.grad, a.grad_dtype, first, count, grad);
    StepTyped<double>(a, grad, static_cast<NoCopy*>(nullptr), first, first + count);
    if (a.copy == nullptr) continue;
    const double* param = static_cast<const double*>(a.param) + first;
    switch (a.copy_dtype) {
      case DType::float32:
        NarrowTile<float>(param, first, count, a.copy);
        break;
      case DType::bfloat16:
        NarrowTile<BFloat16>(param, first, count, a.copy);
        break;
      case DType::float16:
        NarrowTile<Float16>(param, first, count, a.copy);
        break;
      default:
        std::copy_n(param, count, static_cast<double*>(a.copy) + first);
        break;
    }
  }
}

template <class Step>
void StepRange(const Step& a, std::int64_t first, std::int64_t last) {
  if (a.dtype == DType::float64) {
    StepDouble(a, first, last);
  } else if (a.grad_dtype == DType::float32) {
    StepFloatGrad<float>(a, first, last);
  } else if (a.grad_dtype == DType::bfloat16) {
    StepFloatGrad<BFloat16>(a, first, last);
  } else {
    StepFloatGrad<Float16>(a, first, last);
  }
}

void AdamWRange(const AdamWStep& a, std::int64_t first, std::int64_t last) {
  StepRange(a, first, last);
}
void LionRange(const LionStep& a, std::int64_t first, std::int64_t last) {
  StepRange(a, first, last);
}
void SgdRange(const SgdStep& a, std::int64_t first, std::int64_t last) {
  StepRange(a, first, last);
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(AdamWRange);
HWY_EXPORT(LionRange);
HWY_EXPORT(SgdRange);

constexpr std::int64_t kGrain = 1 << 14;

template <class Step>
void require_types(const char* kernel, const Step& a) {
  TESSERA_REQUIRE(a.dtype == DType::float32 || a.dtype == DType::float64,
                  "{}: parameters of {}; master parameters are float32 or float64", kernel,
                  name_of(a.dtype));
  const auto fits = [&](DType dtype) {
    return is_floating(dtype) && (dtype != DType::float64 || a.dtype == DType::float64);
  };
  TESSERA_REQUIRE(fits(a.grad_dtype), "{}: gradients of {} for parameters of {}", kernel,
                  name_of(a.grad_dtype), name_of(a.dtype));
  TESSERA_REQUIRE(a.copy == nullptr || fits(a.copy_dtype), "{}: a copy of {} of parameters of {}",
                  kernel, name_of(a.copy_dtype), name_of(a.dtype));
}

}  // namespace

void cpu::adamw_step(const AdamWStep& a, Queue) {
  require_types("adamw_step", a);
  parallel_for(0, a.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_decay_ranges(a, begin, end,
                     [](const AdamWStep& step, std::int64_t first, std::int64_t last) {
                       HWY_DYNAMIC_DISPATCH(AdamWRange)(step, first, last);
                     });
  });
}

void cpu::lion_step(const LionStep& a, Queue) {
  require_types("lion_step", a);
  parallel_for(0, a.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_decay_ranges(a, begin, end,
                     [](const LionStep& step, std::int64_t first, std::int64_t last) {
                       HWY_DYNAMIC_DISPATCH(LionRange)(step, first, last);
                     });
  });
}

void cpu::sgd_step(const SgdStep& a, Queue) {
  require_types("sgd_step", a);
  TESSERA_REQUIRE(a.momentum == 0 || a.momentum_buffer != nullptr,
                  "sgd_step: momentum {} needs a momentum buffer", a.momentum);
  parallel_for(0, a.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_decay_ranges(a, begin, end, [](const SgdStep& step, std::int64_t first, std::int64_t last) {
      HWY_DYNAMIC_DISPATCH(SgdRange)(step, first, last);
    });
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

// Adafactor's directions and steps over parts of parameters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/adafactor.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/elementwise/wide_gradient.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// The scalars in the parameter's type T, and one vector's step.
template <class T>
struct AdafactorVectors {
  static constexpr hn::ScalableTag<T> d{};
  Vec<T> grad_scale, weight, rest, least, decay, coefficient;

  HWY_INLINE AdafactorVectors(const AdafactorStep& a, double step)
      : grad_scale(hn::Set(d, static_cast<T>(a.grad_scale))),
        weight(hn::Set(d, static_cast<T>(a.weight))),
        rest(hn::Set(d, static_cast<T>(1.0 - a.weight))),
        least(hn::Set(d, static_cast<T>(a.eps * a.eps))),
        decay(hn::Set(d, static_cast<T>(a.decay))),
        coefficient(hn::Set(d, static_cast<T>(step))) {}

  HWY_INLINE Vec<T> Direction(Vec<T> g, Vec<T> v) const {
    return hn::Div(g, hn::Sqrt(hn::IfThenElse(hn::Lt(v, least), least, v)));
  }
  // The variance after the gradient g.
  HWY_INLINE Vec<T> Moved(Vec<T> v, Vec<T> g) const {
    return hn::Add(hn::Mul(rest, v), hn::Mul(hn::Mul(weight, g), g));
  }
  HWY_INLINE Vec<T> Stepped(Vec<T> p, Vec<T> u) const {
    p = hn::Sub(p, hn::Mul(decay, p));
    return hn::Sub(p, hn::Mul(coefficient, u));
  }
};

// Elements [first, first + count) with gradients from `grad` on. variance(i, g, access) gives the v
// of elements first + i ....
template <class T, class Grad, class Variance>
HWY_INLINE void StepElements(const AdafactorStep& a, const AdafactorVectors<T>& vectors,
                             const Grad* grad, std::int64_t first, std::int64_t count,
                             const Variance& variance) {
  T* const direction = a.direction == nullptr ? nullptr : static_cast<T*>(a.direction) + first;
  T* const param = a.param == nullptr ? nullptr : static_cast<T*>(a.param) + first;
  ForEach<T>(count, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto g = hn::Mul(access.Load(grad + i), vectors.grad_scale);
    const auto u = vectors.Direction(g, variance(i, g, access));
    if (direction != nullptr) access.Store(u, direction + i);
    if (param != nullptr) access.Store(vectors.Stepped(access.Load(param + i), u), param + i);
  });
}

template <class T, class Grad>
HWY_NOINLINE void StepPart(const AdafactorStep& a, double coefficient, const Grad* grad,
                           std::int64_t first, std::int64_t last) {
  const AdafactorVectors<T> vectors(a, coefficient);
  if (a.row_factors == nullptr) {
    T* const variances = static_cast<T*>(a.variance) + first;
    const bool moves = a.weight > 0;
    StepElements(a, vectors, grad, first, last - first,
                 [&](std::int64_t i, auto g, auto access) HWY_ATTR {
                   auto v = access.Load(variances + i);
                   if (moves) {
                     v = vectors.Moved(v, g);
                     access.Store(v, variances + i);
                   }
                   return v;
                 });
    return;
  }
  for (std::int64_t i = first; i < last;) {
    const std::int64_t row = (a.first + i) / a.columns, column = (a.first + i) % a.columns;
    const std::int64_t count = std::min(last - i, a.columns - column);
    const auto factor = hn::Set(Tag<T>(), static_cast<const T*>(a.row_factors)[row]);
    const T* const column_var =
        static_cast<const T*>(a.column_var) + row / a.rows * a.columns + column;
    StepElements(a, vectors, grad + (i - first), i, count,
                 [&](std::int64_t k, auto, auto access)
                     HWY_ATTR { return hn::Mul(factor, access.Load(column_var + k)); });
    i += count;
  }
}

// fp64 parameters: narrower gradients pass through a tile.
void StepDoubles(const AdafactorStep& a, double coefficient, std::int64_t begin, std::int64_t end) {
  if (a.grad_dtype == DType::float64) {
    return StepPart<double>(a, coefficient, static_cast<const double*>(a.grad) + begin, begin, end);
  }
  constexpr std::int64_t kTile = 1024;
  double grad[kTile];
  for (std::int64_t first = begin; first < end; first += kTile) {
    const std::int64_t count = std::min(kTile, end - first);
    widen_gradient(a.grad, a.grad_dtype, first, count, grad);
    StepPart<double>(a, coefficient, static_cast<const double*>(grad), first, first + count);
  }
}

void AdafactorRange(const AdafactorStep& a, double coefficient, std::int64_t first,
                    std::int64_t last) {
  if (a.dtype == DType::float64) {
    StepDoubles(a, coefficient, first, last);
  } else if (a.grad_dtype == DType::float32) {
    StepPart<float>(a, coefficient, static_cast<const float*>(a.grad) + first, first, last);
  } else if (a.grad_dtype == DType::bfloat16) {
    StepPart<float>(a, coefficient, static_cast<const BFloat16*>(a.grad) + first, first, last);
  } else {
    StepPart<float>(a, coefficient, static_cast<const Float16*>(a.grad) + first, first, last);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(AdafactorRange);

double adafactor_coefficient(const AdafactorStep& a) {
  if (a.param == nullptr) return 0;
  const double scale = std::max(a.least_scale, std::sqrt(*a.param_total / a.size));
  const double clip = std::max(1.0, std::sqrt(*a.direction_total / a.size) / a.clip_threshold);
  return a.rate * scale / clip;
}

}  // namespace

void cpu::adafactor_step(const AdafactorStep& a, Queue) {
  TESSERA_REQUIRE(a.dtype == DType::float32 || a.dtype == DType::float64,
                  "adafactor_step: parameters of {}; master parameters are float32 or float64",
                  name_of(a.dtype));
  TESSERA_REQUIRE(
      is_floating(a.grad_dtype) && (a.grad_dtype != DType::float64 || a.dtype == DType::float64),
      "adafactor_step: gradients of {} for parameters of {}", name_of(a.grad_dtype),
      name_of(a.dtype));
  const double coefficient = adafactor_coefficient(a);
  parallel_for(0, a.n, std::int64_t{1} << 14, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdafactorRange)(a, coefficient, begin, end);
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

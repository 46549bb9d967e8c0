// Schedule-free AdamW over flat segments: each element is read and written once, and depends on no
// other.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/schedule_free.cpp"
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
#include "kernels/cpu/elementwise/decay_ranges.h"
#include "kernels/cpu/elementwise/wide_gradient.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Products and sums are not fused, so processors without fused instructions compute the same steps.

// A point between two, nearer to the one that it starts from.
template <class T>
struct BetweenVectors {
  static constexpr hn::ScalableTag<T> d{};
  bool from_end;
  Vec<T> part;

  HWY_INLINE explicit BetweenVectors(double part_of_end)
      : from_end(part_of_end >= 0.5),
        part(hn::Set(d, static_cast<T>(from_end ? 1.0 - part_of_end : part_of_end))) {}

  HWY_INLINE Vec<T> At(Vec<T> begin, Vec<T> end) const {
    if (from_end) return hn::Add(end, hn::Mul(part, hn::Sub(begin, end)));
    return hn::Add(begin, hn::Mul(part, hn::Sub(end, begin)));
  }
};

// The scalars in the parameter's type T, and one vector's step.
template <class T>
struct ScheduleFreeVectors {
  static constexpr hn::ScalableTag<T> d{};
  Vec<T> grad_scale, decay, beta2, rest2, lr, root_correction2, eps;
  BetweenVectors<T> average, point;

  HWY_INLINE explicit ScheduleFreeVectors(const ScheduleFreeStep& a)
      : grad_scale(hn::Set(d, static_cast<T>(a.grad_scale))),
        decay(hn::Set(d, static_cast<T>(a.weight_decay))),
        beta2(hn::Set(d, static_cast<T>(a.beta2))),
        rest2(hn::Set(d, static_cast<T>(1.0 - a.beta2))),
        lr(hn::Set(d, static_cast<T>(a.lr))),
        root_correction2(hn::Set(d, static_cast<T>(std::sqrt(a.correction2)))),
        eps(hn::Set(d, static_cast<T>(a.eps))),
        average(a.part),
        point(1.0 - a.beta1) {}

  HWY_INLINE void Step(Vec<T>& param, Vec<T> grad, Vec<T>& z, Vec<T>& v, Vec<T>& x) const {
    const auto g = hn::Mul(grad, grad_scale);
    v = hn::Add(hn::Mul(beta2, v), hn::Mul(hn::Mul(rest2, g), g));
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), root_correction2), eps);
    const auto direction = hn::Add(hn::Div(g, denominator), hn::Mul(decay, param));
    z = hn::Sub(z, hn::Mul(lr, direction));
    x = average.At(x, z);
    param = point.At(x, z);
  }
};

template <class T, class Grad>
HWY_NOINLINE void ScheduleFreeTyped(const ScheduleFreeStep& a, const Grad* grad, std::int64_t first,
                                    std::int64_t last) {
  const ScheduleFreeVectors<T> vectors(a);
  T* param = static_cast<T*>(a.param) + first;
  T* z = static_cast<T*>(a.z) + first;
  T* v = static_cast<T*>(a.v) + first;
  T* average = static_cast<T*>(a.average) + first;
  const T* old_z = a.first_step ? param : z;
  const T* old_average = a.first_step ? param : average;
  ForEach<T>(last - first, [&](std::int64_t i, auto access) HWY_ATTR {
    auto p = access.Load(param + i);
    auto z_i = access.Load(old_z + i);
    auto v_i = access.Load(v + i);
    auto x = access.Load(old_average + i);
    vectors.Step(p, access.Load(grad + i), z_i, v_i, x);
    access.Store(p, param + i);
    access.Store(z_i, z + i);
    access.Store(v_i, v + i);
    access.Store(x, average + i);
  });
}

// fp64 parameters, which are only for checks of gradients and convergence.
void ScheduleFreeDouble(const ScheduleFreeStep& a, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kTile = 1024;
  double grad[kTile];
  for (std::int64_t first = begin; first < end; first += kTile) {
    const std::int64_t count = std::min(kTile, end - first);
    widen_gradient(a.grad, a.grad_dtype, first, count, grad);
    ScheduleFreeTyped<double>(a, grad, first, first + count);
  }
}

void ScheduleFreeRange(const ScheduleFreeStep& a, std::int64_t first, std::int64_t last) {
  if (a.dtype == DType::float64) {
    ScheduleFreeDouble(a, first, last);
  } else if (a.grad_dtype == DType::float32) {
    ScheduleFreeTyped<float>(a, static_cast<const float*>(a.grad) + first, first, last);
  } else if (a.grad_dtype == DType::bfloat16) {
    ScheduleFreeTyped<float>(a, static_cast<const BFloat16*>(a.grad) + first, first, last);
  } else {
    ScheduleFreeTyped<float>(a, static_cast<const Float16*>(a.grad) + first, first, last);
  }
}

template <class T>
HWY_NOINLINE void PointTyped(const ScheduleFreePoint& a, std::int64_t first, std::int64_t last) {
  const BetweenVectors<T> point(1.0 - a.beta1);
  T* param = static_cast<T*>(a.param) + first;
  const T* z = static_cast<const T*>(a.z) + first;
  const T* average = static_cast<const T*>(a.average) + first;
  ForEach<T>(last - first, [&](std::int64_t i, auto access) HWY_ATTR {
    access.Store(point.At(access.Load(average + i), access.Load(z + i)), param + i);
  });
}

void ScheduleFreePointRange(const ScheduleFreePoint& a, std::int64_t first, std::int64_t last) {
  if (a.dtype == DType::float64) {
    PointTyped<double>(a, first, last);
  } else {
    PointTyped<float>(a, first, last);
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(ScheduleFreeRange);
HWY_EXPORT(ScheduleFreePointRange);

constexpr std::int64_t kGrain = 1 << 14;

void require_master(const char* kernel, DType dtype) {
  TESSERA_REQUIRE(dtype == DType::float32 || dtype == DType::float64,
                  "{}: parameters of {}; master parameters are float32 or float64", kernel,
                  name_of(dtype));
}

}  // namespace

void cpu::schedule_free_step(const ScheduleFreeStep& a, Queue) {
  require_master("schedule_free_step", a.dtype);
  TESSERA_REQUIRE(
      is_floating(a.grad_dtype) && (a.grad_dtype != DType::float64 || a.dtype == DType::float64),
      "schedule_free_step: gradients of {} for parameters of {}", name_of(a.grad_dtype),
      name_of(a.dtype));
  parallel_for(0, a.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_decay_ranges(a, begin, end,
                     [](const ScheduleFreeStep& step, std::int64_t first, std::int64_t last) {
                       HWY_DYNAMIC_DISPATCH(ScheduleFreeRange)(step, first, last);
                     });
  });
}

void cpu::schedule_free_point(const ScheduleFreePoint& a, Queue) {
  require_master("schedule_free_point", a.dtype);
  parallel_for(0, a.n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(ScheduleFreePointRange)(a, begin, end);
  });
}

}  // namespace tessera::kernels
#endif

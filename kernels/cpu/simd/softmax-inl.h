// The sum of exponentials of a row, shared by softmax and cross-entropy; compiled once per
// instruction set.
#if defined(TESSERA_KERNELS_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_CPU_SOFTMAX_INL_H_
#undef TESSERA_KERNELS_CPU_SOFTMAX_INL_H_
#else
#define TESSERA_KERNELS_CPU_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {

// The sum of e^(x - shift) over a row; shift is the row's maximum, or 0 if that is not finite.
template <class C>
struct ExponentialSum {
  C sum;
  C shift;
};

template <class T>
HWY_INLINE Compute<T> RowMaximum(const T* x, std::int64_t n) {
  const Tag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<Compute<T>>::infinity());
  const auto lanes = static_cast<std::int64_t>(LaneCount<T>());
  auto max0 = lowest, max1 = lowest, max2 = lowest, max3 = lowest;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    max0 = hn::Max(max0, LoadVector(x + i));
    max1 = hn::Max(max1, LoadVector(x + i + lanes));
    max2 = hn::Max(max2, LoadVector(x + i + 2 * lanes));
    max3 = hn::Max(max3, LoadVector(x + i + 3 * lanes));
  }
  ForEach<T>(n - i, [&](std::int64_t j, auto access) HWY_ATTR {
    max0 = hn::Max(max0, access.Keep(access.Load(x + i + j), lowest));
  });
  return LaneMax(hn::Max(hn::Max(max0, max1), hn::Max(max2, max3)));
}

// One pass over memory: the row is processed in blocks that stay in the first-level cache, and the
// sum so far is rescaled when a block has a new maximum.
template <class T>
ExponentialSum<Compute<T>> SumOfExponentials(const T* x, std::int64_t n) {
  using C = Compute<T>;
  const Tag<T> d;
  constexpr std::int64_t block = 4096;
  C maximum = -std::numeric_limits<C>::infinity();
  C sum = 0;
  // A NaN may not appear in the maximum, but it reaches the sum. Blocks with only -Inf add nothing.
  const auto finite = [](C value) { return std::isfinite(value) ? value : C{0}; };
  for (std::int64_t start = 0; start < n; start += block) {
    const T* values = x + start;
    const std::int64_t count = std::min(block, n - start);
    const C block_maximum = RowMaximum(values, count);
    if (block_maximum > maximum) {
      if (std::isfinite(maximum)) sum *= std::exp(maximum - block_maximum);
      maximum = block_maximum;
    }
    const auto shift = hn::Set(d, finite(maximum));
    sum += LaneSum(SumTerms<T>(count, [&](std::int64_t i, auto access) HWY_ATTR {
      return access.Keep(ExpOfNegative(hn::Sub(access.Load(values + i), shift)), hn::Zero(d));
    }));
  }
  return {sum, finite(maximum)};
}

}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

// Softmax cross-entropy over rows of logits, forward and backward.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/cross_entropy.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <cmath>

#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/cpu/simd/softmax-inl.h"
#include "kernels/registry.h"

// Compiled once, although the file is included for every instruction set.
#ifndef TESSERA_KERNELS_CPU_CROSS_ENTROPY_ONCE_
#define TESSERA_KERNELS_CPU_CROSS_ENTROPY_ONCE_
namespace tessera::kernels {
namespace {

constexpr std::int64_t ignored_row = -1;

// The row's target, or ignored_row.
template <class Arguments>
std::int64_t target_of(const Arguments& a, std::int64_t row) {
  const std::int64_t target = a.target_dtype == int64
                                  ? static_cast<const std::int64_t*>(a.targets)[row]
                                  : static_cast<const std::int32_t*>(a.targets)[row];
  if (target == a.ignore) return ignored_row;
  TESSERA_CHECK(target >= 0 && target < a.vocabulary, ErrorCode::data,
                "cross-entropy: target {} of row {} is outside the vocabulary of {}; only the "
                "ignored target {} may be",
                target, row, a.vocabulary, a.ignore);
  return target;
}

}  // namespace
}  // namespace tessera::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// A single element, widened as vectors are.
template <class T>
HWY_INLINE Compute<T> LoadOne(const T* p) {
  return hn::GetLane(LoadPartial(p, 1));
}

// Merges two parts of a row. A part that adds nothing (only -Inf) has no shift of its own.
template <class C>
ExponentialSum<C> Merge(const ExponentialSum<C>& left, const ExponentialSum<C>& right) {
  if (left.sum == 0) return right;
  if (right.sum == 0) return left;
  const C shift = std::max(left.shift, right.shift);
  return {left.sum * std::exp(left.shift - shift) + right.sum * std::exp(right.shift - shift),
          shift};
}

template <class T>
void ForwardRow(const CrossEntropyForward& a, std::int64_t row) {
  using C = Compute<T>;
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  C& loss = static_cast<C*>(a.loss)[row];
  C& log_sum_exp = static_cast<C*>(a.log_sum_exp)[row];
  const std::int64_t target = target_of(a, row);
  ExponentialSum<C> sum = SumOfExponentials(logits, a.columns);
  if (a.first > 0) sum = Merge({static_cast<const C*>(a.sum)[row], log_sum_exp}, sum);
  if (target >= a.first && target < a.first + a.columns) {
    loss = LoadOne(logits + (target - a.first));
  }
  if (a.first + a.columns < a.vocabulary) {
    static_cast<C*>(a.sum)[row] = sum.sum;
    log_sum_exp = sum.shift;
    return;
  }
  const C log_sum = std::log(sum.sum);
  log_sum_exp = sum.shift + log_sum;
  // Takes the difference to the shift first: it is exact or nearly so if the loss is small.
  loss = target == ignored_row ? C{0} : (sum.shift - loss) + log_sum;
}

// Gradients are rounded to Out; T's arithmetic determines the lanes.
template <class T, class Out>
void BackwardRow(const CrossEntropyBackward& a, std::int64_t row) {
  using C = Compute<T>;
  const Tag<T> d;
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  Out* dlogits = static_cast<Out*>(a.dlogits) + row * a.stride;
  const std::int64_t target = target_of(a, row);
  if (target == ignored_row) {
    ForEach<T>(a.columns, [&](std::int64_t i, auto access)
                              HWY_ATTR { access.Store(hn::Zero(d), dlogits + i); });
    return;
  }
  const auto shift = hn::Set(d, static_cast<const C*>(a.log_sum_exp)[row]);
  const double factor = *a.inverse_count * static_cast<double>(*static_cast<const C*>(a.dloss));
  const auto scale = hn::Set(d, static_cast<C>(factor));
  const std::int64_t here = target - a.first;
  const bool in_block = here >= 0 && here < a.columns;
  // Read before the loop, which may overwrite the logit.
  const auto logit = in_block ? LoadPartial(logits + here, 1) : shift;
  const auto at_target =
      hn::Mul(scale, hn::Sub(ExpOfNegative(hn::Sub(logit, shift)), hn::Set(d, C{1})));
  ForEach<T>(a.columns, [&](std::int64_t i, auto access) HWY_ATTR {
    access.Store(hn::Mul(scale, ExpOfNegative(hn::Sub(access.Load(logits + i), shift))),
                 dlogits + i);
  });
  if (in_block) StorePartial(at_target, dlogits + here, 1);
}

void CrossEntropyRows(const CrossEntropyForward& a) {
  cpu::for_floating(a.dtype, "cross_entropy_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.columns), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) ForwardRow<T>(a, row);
    });
  });
}

template <class T, class Out>
void GradientRows(const CrossEntropyBackward& a) {
  parallel_for(0, a.rows, cpu::rows_grain(a.columns), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) BackwardRow<T, Out>(a, row);
  });
}

void CrossEntropyGradientRows(const CrossEntropyBackward& a) {
  cpu::for_floating(a.out_dtype, "cross_entropy_backward", [&](auto tag) {
    using Out = typename decltype(tag)::type;
    if (a.dtype == a.out_dtype) return GradientRows<Out, Out>(a);
    if constexpr (is_16_bit<Out>) GradientRows<float, Out>(a);
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(CrossEntropyRows);
HWY_EXPORT(CrossEntropyGradientRows);

namespace {
template <class Arguments>
void check(const Arguments& a) {
  TESSERA_REQUIRE(a.target_dtype == int32 || a.target_dtype == int64,
                  "cross-entropy: targets are {}; they must be int32 or int64",
                  name_of(a.target_dtype));
  TESSERA_REQUIRE(a.first >= 0 && a.columns >= 0 && a.first + a.columns <= a.vocabulary,
                  "cross-entropy: {} columns from {} on, of a vocabulary of {}", a.columns, a.first,
                  a.vocabulary);
  TESSERA_REQUIRE(a.stride >= a.columns, "cross-entropy: row stride {} is below the {} columns",
                  a.stride, a.columns);
}
}  // namespace

void cpu::cross_entropy_forward(const CrossEntropyForward& a, Queue) {
  check(a);
  TESSERA_REQUIRE(a.columns == a.vocabulary || a.sum != nullptr,
                  "cross-entropy: a block of the vocabulary without memory for its sum");
  HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(a);
}
void cpu::cross_entropy_backward(const CrossEntropyBackward& a, Queue) {
  check(a);
  TESSERA_REQUIRE(a.out_dtype == a.dtype || (a.dtype == float32 && size_of(a.out_dtype) == 2),
                  "cross-entropy: gradients of {} from logits of {}", name_of(a.out_dtype),
                  name_of(a.dtype));
  HWY_DYNAMIC_DISPATCH(CrossEntropyGradientRows)(a);
}

}  // namespace tessera::kernels
#endif

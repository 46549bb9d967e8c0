// Softmax cross-entropy over rows of logits, forward and backward.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "kernels/cpu/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <cmath>

#include "kernels/base/parallel.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/simd_math-inl.h"
#include "kernels/cpu/softmax-inl.h"
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

template <class T>
void ForwardRow(const CrossEntropyForward& a, std::int64_t row) {
  using C = Compute<T>;
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  const std::int64_t target = target_of(a, row);
  const ExponentialSum<C> sum = SumOfExponentials(logits, a.vocabulary);
  const C log_sum = std::log(sum.sum);
  static_cast<C*>(a.log_sum_exp)[row] = sum.shift + log_sum;
  // The difference to the shift first: it is exact or nearly so where the loss is small.
  static_cast<C*>(a.loss)[row] =
      target == ignored_row ? C{0} : (sum.shift - LoadOne(logits + target)) + log_sum;
}

template <class T>
void BackwardRow(const CrossEntropyBackward& a, std::int64_t row) {
  using C = Compute<T>;
  const Tag<T> d;
  const T* logits = static_cast<const T*>(a.logits) + row * a.stride;
  T* dlogits = static_cast<T*>(a.dlogits) + row * a.stride;
  const std::int64_t target = target_of(a, row);
  if (target == ignored_row) {
    ForEach<T>(a.vocabulary, [&](std::int64_t i, auto access)
                                 HWY_ATTR { access.Store(hn::Zero(d), dlogits + i); });
    return;
  }
  const auto shift = hn::Set(d, static_cast<const C*>(a.log_sum_exp)[row]);
  const double factor = *a.inverse_count * static_cast<double>(*static_cast<const C*>(a.dloss));
  const auto scale = hn::Set(d, static_cast<C>(factor));
  // Before the loop, which may overwrite the logit.
  const auto probability = ExpOfNegative(hn::Sub(LoadPartial(logits + target, 1), shift));
  const auto at_target = hn::Mul(scale, hn::Sub(probability, hn::Set(d, C{1})));
  ForEach<T>(a.vocabulary, [&](std::int64_t i, auto access) HWY_ATTR {
    access.Store(hn::Mul(scale, ExpOfNegative(hn::Sub(access.Load(logits + i), shift))),
                 dlogits + i);
  });
  StorePartial(at_target, dlogits + target, 1);
}

void CrossEntropyRows(const CrossEntropyForward& a) {
  cpu::for_floating(a.dtype, "cross_entropy_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.vocabulary),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t row = first; row < last; ++row) ForwardRow<T>(a, row);
                 });
  });
}

void CrossEntropyGradientRows(const CrossEntropyBackward& a) {
  cpu::for_floating(a.dtype, "cross_entropy_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.vocabulary),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t row = first; row < last; ++row) BackwardRow<T>(a, row);
                 });
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
  TESSERA_REQUIRE(a.stride >= a.vocabulary,
                  "cross-entropy: row stride {} is below the vocabulary {}", a.stride,
                  a.vocabulary);
}
}  // namespace

void cpu::cross_entropy_forward(const CrossEntropyForward& a, Queue) {
  check(a);
  HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(a);
}
void cpu::cross_entropy_backward(const CrossEntropyBackward& a, Queue) {
  check(a);
  HWY_DYNAMIC_DISPATCH(CrossEntropyGradientRows)(a);
}

}  // namespace tessera::kernels
#endif

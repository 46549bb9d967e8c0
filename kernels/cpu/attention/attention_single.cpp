// Attention of a single query: for each key the scores of all heads, then softmax, then for each
// value the sums of all heads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/attention_single.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/attention/attention_single.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

template <class C>
HWY_INLINE bool HasNan(const C* values, std::int64_t count) {
  return std::any_of(values, values + count, [](C value) { return std::isnan(value); });
}

template <class T>
HWY_INLINE Compute<T> ScoreOf(const T* q, const T* k, std::int64_t dim) {
  auto sum = hn::Zero(Tag<T>());
  ForEach<T>(dim, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto zero = hn::Zero(Tag<T>());
    sum = hn::MulAdd(access.Keep(access.Load(q + i), zero), access.Keep(access.Load(k + i), zero),
                     sum);
  });
  return LaneSum(sum);
}

// scores = e^(scores - maximum) / the sum of these, or 0 if every score is -inf. Returns the
// logarithm of the sum of e^scores.
template <class C>
HWY_INLINE C SoftmaxInPlace(C* scores, std::int64_t count) {
  C largest = -std::numeric_limits<C>::infinity();
  for (std::int64_t j = 0; j < count; ++j) largest = std::max(largest, scores[j]);
  if (largest == -std::numeric_limits<C>::infinity() && !HasNan(scores, count)) {
    std::fill_n(scores, count, C{0});
    return largest;
  }
  const auto shift = hn::Set(Tag<C>(), largest);
  const auto sum = LaneSum(SumTerms<C>(count, [&](std::int64_t j, auto access) HWY_ATTR {
    const auto power = ExpOfNegative(hn::Sub(access.Load(scores + j), shift));
    access.Store(power, scores + j);
    return access.Keep(power, hn::Zero(Tag<C>()));
  }));
  const auto inverse = hn::Set(Tag<C>(), C{1} / sum);
  ForEach<C>(count, [&](std::int64_t j, auto access) HWY_ATTR {
    access.Store(hn::Mul(access.Load(scores + j), inverse), scores + j);
  });
  return largest + std::log(sum);
}

template <class C>
HWY_INLINE void AddBias(C* scores, std::int64_t count, const C* bias) {
  ForEach<C>(count, [&](std::int64_t j, auto access) HWY_ATTR {
    access.Store(hn::Add(access.Load(scores + j), access.Load(bias + j)), scores + j);
  });
}

template <class C>
HWY_INLINE void CapScores(C* scores, std::int64_t count, C cap) {
  const auto by = hn::Set(Tag<C>(), cap), inverse = hn::Set(Tag<C>(), C{1} / cap);
  ForEach<C>(count, [&](std::int64_t j, auto access) HWY_ATTR {
    access.Store(hn::Mul(by, Tanh(hn::Mul(access.Load(scores + j), inverse))), scores + j);
  });
}

// The keys that the query sees: with a window, the last ones.
HWY_INLINE std::int64_t KeysOf(const AttentionShape& s) {
  return s.window > 0 ? std::min(s.window, s.key_length) : s.key_length;
}

// The key heads [first, last) of a sequence with their query heads. `scores` [query heads, keys]
// and `sums` [query heads, value_dim] are scratch.
template <class T>
HWY_NOINLINE void SingleQuery(const AttentionForward& a, std::int64_t batch, std::int64_t first,
                              std::int64_t last, Compute<T>* scores, Compute<T>* sums) {
  using C = Compute<T>;
  const AttentionShape& s = a.shape;
  const std::int64_t group = s.heads / s.key_heads;
  const std::int64_t heads = (last - first) * group;
  const std::int64_t keys = KeysOf(s), first_key = s.key_length - keys;
  const T* const q = static_cast<const T*>(a.q) + batch * s.q_stride + first * group * s.head_dim;
  const std::int64_t value_dim = value_dim_of(s);
  const auto row_of = [&](const void* base, std::int64_t stride, std::int64_t key,
                          std::int64_t width) {
    return static_cast<const T*>(base) + (batch * s.key_length + first_key + key) * stride +
           first * width;
  };
  for (std::int64_t key = 0; key < keys; ++key) {
    const T* const k = row_of(a.k, s.k_stride, key, s.head_dim);
    for (std::int64_t head = 0; head < heads; ++head) {
      scores[head * keys + key] =
          static_cast<C>(s.scale) *
          ScoreOf(q + head * s.head_dim, k + head / group * s.head_dim, s.head_dim);
    }
  }
  for (std::int64_t head = 0; head < heads; ++head) {
    if (s.soft_cap > 0) CapScores(scores + head * keys, keys, static_cast<C>(s.soft_cap));
    const std::int64_t query_head = first * group + head;
    if (s.bias != nullptr) {
      AddBias(scores + head * keys, keys,
              static_cast<const C*>(s.bias) + batch * s.bias_batch_stride +
                  query_head * s.bias_head_stride + first_key);
    }
    const C log_sum_exp = SoftmaxInPlace(scores + head * keys, keys);
    if (a.log_sum_exp != nullptr) {
      static_cast<C*>(a.log_sum_exp)[batch * s.heads + query_head] = log_sum_exp;
    }
  }
  std::fill_n(sums, heads * value_dim, C{0});
  for (std::int64_t key = 0; key < keys; ++key) {
    const T* const v = row_of(a.v, s.v_stride, key, value_dim);
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto weight = hn::Set(Tag<T>(), scores[head * keys + key]);
      const T* const value = v + head / group * value_dim;
      C* const sum = sums + head * value_dim;
      ForEach<T>(value_dim, [&](std::int64_t i, auto access) HWY_ATTR {
        access.Store(hn::MulAdd(weight, access.Load(value + i), access.Load(sum + i)), sum + i);
      });
    }
  }
  T* const out = static_cast<T*>(a.out) + batch * s.out_stride + first * group * value_dim;
  ForEach<T>(heads * value_dim, [&](std::int64_t i, auto access)
                                    HWY_ATTR { access.Store(access.Load(sums + i), out + i); });
}

void SingleQueryHeads(const AttentionForward& a, std::int64_t batch, std::int64_t first,
                      std::int64_t last) {
  static thread_local cpu::ScratchBuffer scores, sums;
  const std::int64_t heads = (last - first) * (a.shape.heads / a.shape.key_heads);
  cpu::for_floating(a.shape.dtype, "attention_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    SingleQuery<T>(a, batch, first, last, scores.get<Compute<T>>(heads * KeysOf(a.shape)),
                   sums.get<Compute<T>>(heads * value_dim_of(a.shape)));
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(SingleQueryHeads);
}  // namespace

bool cpu::is_single_query(const AttentionForward& arguments) {
  const AttentionShape& s = arguments.shape;
  return s.query_length == 1 && s.key_length > 0 &&
         (arguments.log_sum_exp == nullptr || arguments.inference) && s.key_mask == nullptr &&
         s.document_starts == nullptr && s.dropout == 0;
}

void cpu::attention_single(const AttentionForward& arguments) {
  const AttentionShape& s = arguments.shape;
  const std::int64_t keys = s.window > 0 ? std::min(s.window, s.key_length) : s.key_length;
  const std::int64_t work = keys * std::max(s.head_dim, value_dim_of(s)) * (s.heads / s.key_heads);
  const std::int64_t grain =
      std::max<std::int64_t>(1, parallel_grain / std::max<std::int64_t>(1, work));
  for (std::int64_t batch = 0; batch < s.batch; ++batch) {
    parallel_for(0, s.key_heads, grain, [&](std::int64_t first, std::int64_t last) {
      HWY_DYNAMIC_DISPATCH(SingleQueryHeads)(arguments, batch, first, last);
    });
  }
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

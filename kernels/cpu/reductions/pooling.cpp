// Pooling of sequences and normalisation of rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/pooling.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// The factor of a sequence's sum.
template <class C>
C PoolFactor(PoolingMode mode, std::int64_t length) {
  const auto n = static_cast<C>(length);
  if (mode == PoolingMode::mean) return C{1} / n;
  return mode == PoolingMode::mean_sqrt_length ? C{1} / std::sqrt(n) : C{1};
}

// The larger of the two, or the NaN.
template <class V>
HWY_INLINE V LargerOrNaN(V largest, V value) {
  return hn::IfThenElse(hn::Or(hn::Gt(value, largest), hn::IsNaN(value)), value, largest);
}

template <class T>
void PoolSequence(const PoolForward& a, std::int64_t sequence) {
  using C = Compute<T>;
  const T* const x = static_cast<const T*>(a.x) + a.starts[sequence] * a.dim;
  C* const out = static_cast<C*>(a.out) + sequence * a.out_stride;
  const std::int64_t length = a.mode == PoolingMode::cls ? 1 : a.lengths[sequence];
  const auto factor = hn::Set(Tag<C>(), PoolFactor<C>(a.mode, length));
  const bool largest = a.mode == PoolingMode::max;
  ForEach<C>(a.dim, [&](std::int64_t i, auto access) HWY_ATTR {
    auto value = access.Load(x + i);
    if (largest) {
      for (std::int64_t r = 1; r < length; ++r) {
        value = LargerOrNaN(value, access.Load(x + r * a.dim + i));
      }
    } else {
      for (std::int64_t r = 1; r < length; ++r) {
        value = hn::Add(value, access.Load(x + r * a.dim + i));
      }
      value = hn::Mul(value, factor);
    }
    access.Store(value, out + i);
  });
}

// The gradient of the maximum goes to the first row that has it.
template <class T>
void MaximumGradient(const PoolBackward& a, std::int64_t sequence) {
  using C = Compute<T>;
  const std::int64_t start = a.starts[sequence] * a.dim, length = a.lengths[sequence];
  const T* const x = static_cast<const T*>(a.x) + start;
  T* const dx = static_cast<T*>(a.dx) + start;
  const C* const dout = static_cast<const C*>(a.dout) + sequence * a.out_stride;
  ForEach<C>(a.dim, [&](std::int64_t i, auto access) HWY_ATTR {
    auto largest = access.Load(x + i);
    for (std::int64_t r = 1; r < length; ++r) {
      largest = LargerOrNaN(largest, access.Load(x + r * a.dim + i));
    }
    const auto nan = hn::IsNaN(largest);
    auto left = access.Load(dout + i);
    for (std::int64_t r = 0; r < length; ++r) {
      const auto value = access.Load(x + r * a.dim + i);
      const auto found = hn::Or(hn::Eq(value, largest), hn::And(nan, hn::IsNaN(value)));
      auto gradient = hn::IfThenElseZero(found, left);
      left = hn::IfThenZeroElse(found, left);
      T* const to = dx + r * a.dim + i;
      if (a.accumulate) gradient = hn::Add(access.Load(to), gradient);
      access.Store(gradient, to);
    }
  });
}

template <class T>
void PoolGradient(const PoolBackward& a, std::int64_t sequence) {
  using C = Compute<T>;
  if (a.mode == PoolingMode::max) return MaximumGradient<T>(a, sequence);
  const std::int64_t length = a.lengths[sequence];
  T* const dx = static_cast<T*>(a.dx) + a.starts[sequence] * a.dim;
  const C* const dout = static_cast<const C*>(a.dout) + sequence * a.out_stride;
  const auto factor = hn::Set(Tag<C>(), PoolFactor<C>(a.mode, length));
  for (std::int64_t r = 0; r < length; ++r) {
    const bool reached = a.mode != PoolingMode::cls || r == 0;
    if (!reached && a.accumulate) return;
    T* const to = dx + r * a.dim;
    ForEach<C>(a.dim, [&](std::int64_t i, auto access) HWY_ATTR {
      auto gradient = hn::Zero(Tag<C>());
      if (reached) gradient = hn::Mul(access.Load(dout + i), factor);
      if (a.accumulate) gradient = hn::Add(access.Load(to + i), gradient);
      access.Store(gradient, to + i);
    });
  }
}

void PoolSequences(const PoolForward& a) {
  cpu::for_floating(a.dtype, "pool_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.sequences, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) PoolSequence<T>(a, i);
    });
  });
}

void PoolGradients(const PoolBackward& a) {
  cpu::for_floating(a.dtype, "pool_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.sequences, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) PoolGradient<T>(a, i);
    });
  });
}

template <class T>
void NormalizeOneRow(const NormalizeRows& a, std::int64_t row) {
  using C = Compute<T>;
  const T* const x = static_cast<const T*>(a.x) + row * a.dim;
  T* const out = static_cast<T*>(a.out) + row * a.dim;
  const C norm = std::sqrt(LaneSum(SumTerms<T>(a.dim, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto value = access.Load(x + i);
    return hn::Mul(value, value);
  })));
  static_cast<C*>(a.norms)[row] = norm;
  // A NaN remains a NaN.
  const auto divisor =
      hn::Set(Tag<T>(), norm < static_cast<C>(a.eps) ? static_cast<C>(a.eps) : norm);
  ForEach<T>(a.dim, [&](std::int64_t i, auto access)
                        HWY_ATTR { access.Store(hn::Div(access.Load(x + i), divisor), out + i); });
}

template <class T>
void NormalizeRowGradient(const NormalizeRowsBackward& a, std::int64_t row) {
  using C = Compute<T>;
  const T* const x = static_cast<const T*>(a.x) + row * a.dim;
  const T* const dout = static_cast<const T*>(a.dout) + row * a.dim;
  T* const dx = static_cast<T*>(a.dx) + row * a.dim;
  const C norm = static_cast<const C*>(a.norms)[row];
  const bool small = norm < static_cast<C>(a.eps);
  const C inverse = C{1} / (small ? static_cast<C>(a.eps) : norm);
  C along = 0;  // component of the gradient along x
  if (!small) {
    along =
        inverse * inverse * LaneSum(SumTerms<T>(a.dim, [&](std::int64_t i, auto access) HWY_ATTR {
          return hn::Mul(access.Load(x + i), access.Load(dout + i));
        }));
  }
  const auto slope = hn::Set(Tag<T>(), along);
  const auto factor = hn::Set(Tag<T>(), inverse);
  ForEach<T>(a.dim, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto across = hn::NegMulAdd(access.Load(x + i), slope, access.Load(dout + i));
    access.Store(hn::Mul(across, factor), dx + i);
  });
}

void NormalizeAllRows(const NormalizeRows& a) {
  cpu::for_floating(a.dtype, "normalize_rows", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) NormalizeOneRow<T>(a, row);
    });
  });
}

void NormalizeRowGradients(const NormalizeRowsBackward& a) {
  cpu::for_floating(a.dtype, "normalize_rows_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) NormalizeRowGradient<T>(a, row);
    });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(PoolSequences);
HWY_EXPORT(PoolGradients);
HWY_EXPORT(NormalizeAllRows);
HWY_EXPORT(NormalizeRowGradients);

void cpu::pool_forward(const PoolForward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(PoolSequences)(a);
}
void cpu::pool_backward(const PoolBackward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(PoolGradients)(a);
}
void cpu::normalize_rows(const NormalizeRows& a, Queue) {
  HWY_DYNAMIC_DISPATCH(NormalizeAllRows)(a);
}
void cpu::normalize_rows_backward(const NormalizeRowsBackward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(NormalizeRowGradients)(a);
}

}  // namespace tessera::kernels
#endif

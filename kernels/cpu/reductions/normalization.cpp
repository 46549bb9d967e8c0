// LayerNorm and RMSNorm, forward and backward. A row stays in the first-level cache during the
// passes over it: statistics, then the output.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/normalization.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "kernels/cpu/simd/column_sums-inl.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Reads a row's input: x itself, or x + residual rounded to T, which is stored in `sum`. Returns
// the sum of the values that the norm reads (of their squares for RMS).
template <bool rms, class T>
Compute<T> FirstPass(const T* x, const T* residual, T* sum, std::int64_t n) {
  return LaneSum(SumTerms<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    auto value = access.Load(x + i);
    if (residual != nullptr) {
      value = hn::Add(value, access.Load(residual + i));
      access.Store(value, sum + i);
      if constexpr (is_16_bit<T>) value = access.Load(sum + i);  // the rounded value
    }
    if constexpr (rms) value = hn::Mul(value, value);
    return value;
  }));
}

template <class T>
Compute<T> SquaredDeviations(const T* x, Compute<T> mean, std::int64_t n) {
  const auto center = hn::Set(Tag<T>(), mean);
  return LaneSum(SumTerms<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    const auto deviation = hn::Sub(access.Load(x + i), center);
    return access.Keep(hn::Mul(deviation, deviation), hn::Zero(Tag<T>()));
  }));
}

// out = (x - mean) * rstd * gamma + beta; has_gamma and has_beta are fixed at compile time.
template <bool has_gamma, bool has_beta, class T>
void NormalizeRow(const T* x, Compute<T> mean, Compute<T> rstd, const T* gamma, const T* beta,
                  T* out, std::int64_t n) {
  const auto center = hn::Set(Tag<T>(), mean);
  const auto scale = hn::Set(Tag<T>(), rstd);
  ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    auto value = hn::Mul(hn::Sub(access.Load(x + i), center), scale);
    if constexpr (has_gamma && has_beta) {
      value = hn::MulAdd(value, access.Load(gamma + i), access.Load(beta + i));
    } else if constexpr (has_gamma) {
      value = hn::Mul(value, access.Load(gamma + i));
    } else if constexpr (has_beta) {
      value = hn::Add(value, access.Load(beta + i));
    }
    access.Store(value, out + i);
  });
}

template <bool rms, class T>
void NormForwardRow(const NormForward& a, std::int64_t row) {
  using C = Compute<T>;
  const std::int64_t start = row * a.dim;
  const T* x = static_cast<const T*>(a.x) + start;
  const T* residual = a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + start;
  T* sum = residual == nullptr ? nullptr : static_cast<T*>(a.sum) + start;
  const auto n = static_cast<C>(a.dim);
  const C total = FirstPass<rms>(x, residual, sum, a.dim);
  const T* input = residual == nullptr ? x : sum;
  C mean = 0;
  C variance = total / n;
  if constexpr (!rms) {
    mean = total / n;
    variance = SquaredDeviations(input, mean, a.dim) / n;
    static_cast<C*>(a.mean)[row] = mean;
  }
  const C rstd = C{1} / std::sqrt(variance + static_cast<C>(a.eps));
  static_cast<C*>(a.rstd)[row] = rstd;
  const auto* gamma = static_cast<const T*>(a.gamma);
  const auto* beta = static_cast<const T*>(a.beta);
  T* out = static_cast<T*>(a.out) + start;
  if (gamma != nullptr && beta != nullptr) {
    NormalizeRow<true, true>(input, mean, rstd, gamma, beta, out, a.dim);
  } else if (gamma != nullptr) {
    NormalizeRow<true, false>(input, mean, rstd, gamma, beta, out, a.dim);
  } else if (beta != nullptr) {
    NormalizeRow<false, true>(input, mean, rstd, gamma, beta, out, a.dim);
  } else {
    NormalizeRow<false, false>(input, mean, rstd, gamma, beta, out, a.dim);
  }
}

void NormForwardVectors(const NormForward& a) {
  cpu::for_floating(a.dtype, "norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        if (a.rms) {
          NormForwardRow<true, T>(a, row);
        } else {
          NormForwardRow<false, T>(a, row);
        }
      }
    });
  });
}

// One row's part of the backward. dgamma and dbeta are the chunk's sums.
template <class T>
struct NormBackwardRow {
  using C = Compute<T>;
  const T* dout;
  const T* dresidual;
  const T* x;
  const T* gamma;
  T* dx;
  C* dgamma;
  C* dbeta;
  C mean, rstd;
  std::int64_t dim;

  template <class Access>
  HWY_INLINE Vec<T> Normalized(std::int64_t i, Access access) const {
    const Tag<T> d;
    return hn::Mul(hn::Sub(access.Load(x + i), hn::Set(d, mean)), hn::Set(d, rstd));
  }
  // The gradient of the normalised value.
  template <bool has_gamma, class Access>
  HWY_INLINE Vec<T> Inner(std::int64_t i, Access access) const {
    const auto gradient = access.Load(dout + i);
    if constexpr (has_gamma) return hn::Mul(gradient, access.Load(gamma + i));
    return gradient;
  }

  // Sums of the inner gradient and of its product with the normalised value; adds to dgamma and
  // dbeta in the same pass.
  template <bool has_gamma, bool sums>
  HWY_INLINE std::pair<C, C> Statistics() const {
    const Tag<T> d;
    auto total = hn::Zero(d), total_odd = total, product = total, product_odd = total;
    bool odd = false;
    ForEach<T>(dim, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto normalized = access.Keep(Normalized(i, access), hn::Zero(d));
      const auto inner = Inner<has_gamma>(i, access);
      if (odd) {
        total_odd = hn::Add(total_odd, inner);
        product_odd = hn::MulAdd(inner, normalized, product_odd);
      } else {
        total = hn::Add(total, inner);
        product = hn::MulAdd(inner, normalized, product);
      }
      odd = !odd;
      if constexpr (sums) {
        const auto gradient = access.Load(dout + i);
        hn::StoreU(hn::MulAdd(gradient, normalized, hn::LoadU(d, dgamma + i)), d, dgamma + i);
        hn::StoreU(hn::Add(gradient, hn::LoadU(d, dbeta + i)), d, dbeta + i);
      }
    });
    return {LaneSum(hn::Add(total, total_odd)), LaneSum(hn::Add(product, product_odd))};
  }

  // dx = rstd * (inner - mean(inner) - normalized * mean(inner * normalized)) + dresidual
  template <bool has_gamma>
  HWY_INLINE void InputGradient(C mean_inner, C mean_product) const {
    const Tag<T> d;
    const auto scale = hn::Set(d, rstd);
    const auto shift = hn::Set(d, mean_inner);
    const auto slope = hn::Set(d, mean_product);
    ForEach<T>(dim, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto centered = hn::Sub(Inner<has_gamma>(i, access), shift);
      auto gradient = hn::Mul(scale, hn::NegMulAdd(Normalized(i, access), slope, centered));
      if (dresidual != nullptr) gradient = hn::Add(access.Load(dresidual + i), gradient);
      access.Store(gradient, dx + i);
    });
  }

  template <bool has_gamma, bool sums>
  void Run(bool rms) const {
    const auto [total, product] = Statistics<has_gamma, sums>();
    const auto n = static_cast<C>(dim);
    InputGradient<has_gamma>(rms ? C{0} : total / n, product / n);
  }
};

template <class T>
NormBackwardRow<T> BackwardRow(const NormBackward& a, std::int64_t row) {
  using C = Compute<T>;
  const std::int64_t start = row * a.dim;
  const auto* dresidual = static_cast<const T*>(a.dresidual);
  return {static_cast<const T*>(a.dout) + start,
          dresidual == nullptr ? nullptr : dresidual + start,
          static_cast<const T*>(a.x) + start,
          static_cast<const T*>(a.gamma),
          static_cast<T*>(a.dx) + start,
          nullptr,
          nullptr,
          a.rms ? C{0} : static_cast<const C*>(a.mean)[row],
          static_cast<const C*>(a.rstd)[row],
          a.dim};
}

template <class T>
void NormBackwardOf(const NormBackward& a) {
  const bool sums = a.dgamma != nullptr || a.dbeta != nullptr;
  const cpu::RowChunks chunks(a.rows);
  const cpu::PartialSums<Compute<T>> dgamma(sums ? chunks.count : 0, a.dim);
  const cpu::PartialSums<Compute<T>> dbeta(sums ? chunks.count : 0, a.dim);
  const auto run_row = [&](std::int64_t chunk, std::int64_t row_index) {
    NormBackwardRow<T> row = BackwardRow<T>(a, row_index);
    if (sums) {
      row.dgamma = dgamma.row(chunk);
      row.dbeta = dbeta.row(chunk);
    }
    if (sums && row.gamma != nullptr) return row.template Run<true, true>(a.rms);
    if (sums) return row.template Run<false, true>(a.rms);
    if (row.gamma != nullptr) return row.template Run<true, false>(a.rms);
    return row.template Run<false, false>(a.rms);
  };
  const std::int64_t grain = std::max<std::int64_t>(
      1, cpu::parallel_grain / std::max<std::int64_t>(1, chunks.chunk_rows * a.dim));
  parallel_for(0, chunks.count, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      for (std::int64_t row = chunks.first(chunk); row < chunks.last(chunk); ++row) {
        run_row(chunk, row);
      }
    }
  });
  if (a.dgamma != nullptr) {
    CombineChunks(dgamma, chunks.count, static_cast<T*>(a.dgamma), a.dim, a.accumulate_gamma);
  }
  if (a.dbeta != nullptr) {
    CombineChunks(dbeta, chunks.count, static_cast<T*>(a.dbeta), a.dim, a.accumulate_beta);
  }
}

void NormBackwardVectors(const NormBackward& a) {
  cpu::for_floating(a.dtype, "norm_backward",
                    [&](auto tag) { NormBackwardOf<typename decltype(tag)::type>(a); });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(NormForwardVectors);
HWY_EXPORT(NormBackwardVectors);

void cpu::norm_forward(const NormForward& a, Queue) {
  TESSERA_REQUIRE(!a.rms || a.beta == nullptr, "norm_forward: RMSNorm takes no beta");
  TESSERA_REQUIRE((a.residual == nullptr) == (a.sum == nullptr),
                  "norm_forward: give both residual and sum, or neither");
  HWY_DYNAMIC_DISPATCH(NormForwardVectors)(a);
}
void cpu::norm_backward(const NormBackward& a, Queue) {
  TESSERA_REQUIRE(!a.rms || a.dbeta == nullptr, "norm_backward: RMSNorm has no beta");
  HWY_DYNAMIC_DISPATCH(NormBackwardVectors)(a);
}

}  // namespace tessera::kernels
#endif

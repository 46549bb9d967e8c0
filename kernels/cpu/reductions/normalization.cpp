// LayerNorm and RMSNorm, forward and backward. A pass over memory reads a few rows, which stay in
// the first-level cache for the passes that need their statistics: no row waits for its own sum,
// and the sums of gamma's and beta's gradients are read once for all of them. A row's bits do not
// depend on the rows beside it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/normalization.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <cmath>
#include <type_traits>

#include "base/parallel.h"
#include "kernels/cpu/simd/column_sums.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/map-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t most_rows = 4;

// Rows of a group: as many as take 4 KiB of an array, so that those of all arrays stay in the
// cache. Types of 32 bits and more wait for memory and not for sums; one row after the other is the
// order that memory is fastest in.
template <class T>
std::int64_t GroupRows(std::int64_t dim) {
  if constexpr (!is_16_bit<T>) return 1;
  const std::int64_t bytes = dim * static_cast<std::int64_t>(sizeof(T));
  if (bytes * 4 <= 4096) return 4;
  return bytes * 2 <= 4096 ? 2 : 1;
}

// One row of the forward.
template <class T>
struct NormForwardRow {
  using C = Compute<T>;
  const T* x;
  const T* residual;  // or null
  T* sum;             // or null
  T* out;
  std::int64_t n;

  NormForwardRow(const NormForward& a, std::int64_t row)
      : x(static_cast<const T*>(a.x) + row * a.dim),
        residual(a.residual == nullptr ? nullptr : static_cast<const T*>(a.residual) + row * a.dim),
        sum(a.sum == nullptr ? nullptr : static_cast<T*>(a.sum) + row * a.dim),
        out(static_cast<T*>(a.out) + row * a.dim),
        n(a.dim) {}

  // The arrays that the norm reads.
  [[nodiscard]] const T* input() const { return residual == nullptr ? x : sum; }

  // The sum of the values that the norm reads (of their squares for RMS). With a residual these are
  // x + residual rounded to T, which is stored in `sum`.
  template <bool rms, bool has_residual>
  HWY_INLINE C Sum() const {
    Pair<T> total = ZeroPair<T>();
    ForEachPair<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      auto value = access.LoadStream(x + i);
      if constexpr (has_residual) {
        value = AddPairs<T>(value, access.LoadStream(residual + i));
        access.StoreStream(value, sum + i);
        if constexpr (is_16_bit<T>) value = access.Load(sum + i);  // the rounded value
      }
      total = rms ? MulAddPairs<T>(value, value, total) : AddPairs<T>(total, value);
    });
    return PairSum<T>(total);
  }

  HWY_INLINE C SquaredDeviations(C mean) const {
    const T* const in = input();
    const auto center = hn::Set(Tag<T>(), mean);
    Pair<T> total = ZeroPair<T>();
    ForEachPair<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      const Pair<T> value = access.Load(in + i);
      const Pair<T> deviation =
          access.Keep(Pair<T>{hn::Sub(value.first, center), hn::Sub(value.second, center)});
      total = MulAddPairs<T>(deviation, deviation, total);
    });
    return PairSum<T>(total);
  }

  // out = (x - mean) * rstd * gamma + beta
  template <bool has_gamma, bool has_beta>
  HWY_INLINE void Normalize(C mean, C rstd, const T* gamma, const T* beta) const {
    const T* const in = input();
    const auto center = hn::Set(Tag<T>(), mean);
    const auto scale = hn::Set(Tag<T>(), rstd);
    ForEachPair<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      auto value = Each<T>([&](auto v) HWY_ATTR { return hn::Mul(hn::Sub(v, center), scale); },
                           access.Load(in + i));
      if constexpr (has_gamma && has_beta) {
        value = Each<T>([](auto v, auto g, auto b) HWY_ATTR { return hn::MulAdd(v, g, b); }, value,
                        access.Load(gamma + i), access.Load(beta + i));
      } else if constexpr (has_gamma) {
        value = Each<T>([](auto v, auto g) HWY_ATTR { return hn::Mul(v, g); }, value,
                        access.Load(gamma + i));
      } else if constexpr (has_beta) {
        value = AddPairs<T>(value, access.Load(beta + i));
      }
      access.StoreStream(value, out + i);
    });
  }
};

// Rows [first, first + count), at most most_rows.
template <bool rms, class T>
HWY_NOINLINE void NormForwardGroup(const NormForward& a, std::int64_t first, std::int64_t count) {
  using C = Compute<T>;
  const auto dim = static_cast<C>(a.dim);
  C total[most_rows], mean[most_rows] = {};
  const auto for_rows = [&](auto&& body) {
    for (std::int64_t r = 0; r < count; ++r) body(NormForwardRow<T>(a, first + r), r);
  };
  for_rows([&](const NormForwardRow<T>& row, std::int64_t r) HWY_ATTR {
    total[r] =
        row.residual == nullptr ? row.template Sum<rms, false>() : row.template Sum<rms, true>();
  });
  if constexpr (!rms) {
    for_rows([&](const NormForwardRow<T>& row, std::int64_t r) HWY_ATTR {
      mean[r] = total[r] / dim;
      static_cast<C*>(a.mean)[first + r] = mean[r];
      total[r] = row.SquaredDeviations(mean[r]);
    });
  }
  const auto* gamma = static_cast<const T*>(a.gamma);
  const auto* beta = static_cast<const T*>(a.beta);
  for_rows([&](const NormForwardRow<T>& row, std::int64_t r) HWY_ATTR {
    const C rstd = C{1} / std::sqrt(total[r] / dim + static_cast<C>(a.eps));
    static_cast<C*>(a.rstd)[first + r] = rstd;
    if (gamma != nullptr && beta != nullptr) {
      row.template Normalize<true, true>(mean[r], rstd, gamma, beta);
    } else if (gamma != nullptr) {
      row.template Normalize<true, false>(mean[r], rstd, gamma, beta);
    } else if (beta != nullptr) {
      row.template Normalize<false, true>(mean[r], rstd, gamma, beta);
    } else {
      row.template Normalize<false, false>(mean[r], rstd, gamma, beta);
    }
  });
}

void NormForwardVectors(const NormForward& a) {
  cpu::for_floating(a.dtype, "norm_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(0, a.rows, cpu::rows_grain(a.dim), [&](std::int64_t first, std::int64_t last) {
      const std::int64_t together = GroupRows<T>(a.dim);
      for (std::int64_t row = first; row < last; row += together) {
        const std::int64_t count = std::min(together, last - row);
        if (a.rms) {
          NormForwardGroup<true, T>(a, row, count);
        } else {
          NormForwardGroup<false, T>(a, row, count);
        }
      }
    });
  });
}

// `rows` rows of the backward; row r begins r * dim elements after the pointers. dgamma and dbeta
// are the chunk's sums, whose elements lie as those of a pair.
template <int rows, class T>
struct NormBackwardRows {
  using C = Compute<T>;
  const T* dout;
  const T* dresidual;  // or null
  const T* x;
  const T* gamma;
  T* dx;
  C* dgamma;
  C* dbeta;
  std::int64_t dim;
  C mean[rows], rstd[rows];

  HWY_INLINE Pair<T> Normalized(int r, Pair<T> value) const {
    const auto center = hn::Set(Tag<T>(), mean[r]);
    const auto scale = hn::Set(Tag<T>(), rstd[r]);
    return {hn::Mul(hn::Sub(value.first, center), scale),
            hn::Mul(hn::Sub(value.second, center), scale)};
  }

  // The chunk's sums of the columns of one pair.
  struct ColumnSums {
    Pair<T> gamma, beta;
  };
  HWY_INLINE ColumnSums LoadSums(std::int64_t i) const {
    const Tag<T> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    return {{hn::LoadU(d, dgamma + i), hn::LoadU(d, dgamma + i + lanes)},
            {hn::LoadU(d, dbeta + i), hn::LoadU(d, dbeta + i + lanes)}};
  }
  static HWY_INLINE ColumnSums AddTo(const ColumnSums& sums, Pair<T> gradient, Pair<T> normalized) {
    return {MulAddPairs<T>(gradient, normalized, sums.gamma), AddPairs<T>(sums.beta, gradient)};
  }
  HWY_INLINE void StoreSums(const ColumnSums& sums, std::int64_t i) const {
    const Tag<T> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    hn::StoreU(sums.gamma.first, d, dgamma + i);
    hn::StoreU(sums.gamma.second, d, dgamma + i + lanes);
    hn::StoreU(sums.beta.first, d, dbeta + i);
    hn::StoreU(sums.beta.second, d, dbeta + i + lanes);
  }

  // Sums of a row's inner gradient, and of its product with the normalised value. One row also adds
  // to dgamma and dbeta here: their stores would wait behind those of dx, which go to memory.
  template <bool has_gamma, bool sums>
  HWY_INLINE void Statistics(int r, C& total, C& product) const {
    Pair<T> totals = ZeroPair<T>(), products = totals;
    ForEachPair<T>(dim, [&](std::int64_t i, auto access) HWY_ATTR {
      const Pair<T> gradient = access.LoadStream(dout + r * dim + i);
      const Pair<T> value = access.LoadStream(x + r * dim + i);
      const Pair<T> normalized = access.Keep(Normalized(r, value));
      Pair<T> inner = gradient;
      if constexpr (has_gamma) inner = MulPairs<T>(inner, access.Load(gamma + i));
      totals = AddPairs<T>(totals, inner);
      products = MulAddPairs<T>(inner, normalized, products);
      if constexpr (sums && rows == 1) StoreSums(AddTo(LoadSums(i), gradient, normalized), i);
    });
    total = PairSum<T>(totals);
    product = PairSum<T>(products);
  }

  // dx = rstd * (inner - mean(inner) - normalized * mean(inner * normalized)) + dresidual. Several
  // rows add to dgamma and dbeta together.
  template <bool has_gamma, bool sums>
  HWY_INLINE void Gradients(const C (&mean_inner)[rows], const C (&mean_product)[rows]) const {
    ForEachPair<T>(dim, [&](std::int64_t i, auto access) HWY_ATTR {
      constexpr bool adds = sums && rows > 1;
      Pair<T> factor;
      ColumnSums column_sums;
      if constexpr (has_gamma) factor = access.Load(gamma + i);
      if constexpr (adds) column_sums = LoadSums(i);
      Unrolled<rows>([&](auto r) HWY_ATTR {
        const Tag<T> d;
        const Pair<T> normalized = Normalized(r, access.Load(x + r * dim + i));
        Pair<T> inner = access.Load(dout + r * dim + i);
        if constexpr (adds) column_sums = AddTo(column_sums, inner, normalized);
        if constexpr (has_gamma) inner = MulPairs<T>(inner, factor);
        const auto scale = hn::Set(d, rstd[r]);
        const auto shift = hn::Set(d, mean_inner[r]);
        const auto slope = hn::Set(d, mean_product[r]);
        auto result = Each<T>(
            [&](auto value, auto n)
                HWY_ATTR { return hn::Mul(scale, hn::NegMulAdd(n, slope, hn::Sub(value, shift))); },
            inner, normalized);
        if (dresidual != nullptr) {
          result = AddPairs<T>(access.LoadStream(dresidual + r * dim + i), result);
        }
        access.StoreStream(result, dx + r * dim + i);
      });
      if constexpr (adds) StoreSums(column_sums, i);
    });
  }

  template <bool has_gamma, bool sums>
  HWY_NOINLINE void Run(bool rms) const {
    C totals[rows], products[rows];
    for (int r = 0; r < rows; ++r) Statistics<has_gamma, sums>(r, totals[r], products[r]);
    for (int r = 0; r < rows; ++r) {
      totals[r] = rms ? C{0} : totals[r] / static_cast<C>(dim);
      products[r] /= static_cast<C>(dim);
    }
    Gradients<has_gamma, sums>(totals, products);
  }
};

template <int rows, class T>
NormBackwardRows<rows, T> BackwardRows(const NormBackward& a, std::int64_t row) {
  using C = Compute<T>;
  const std::int64_t start = row * a.dim;
  const auto* dresidual = static_cast<const T*>(a.dresidual);
  NormBackwardRows<rows, T> group{.dout = static_cast<const T*>(a.dout) + start,
                                  .dresidual = dresidual == nullptr ? nullptr : dresidual + start,
                                  .x = static_cast<const T*>(a.x) + start,
                                  .gamma = static_cast<const T*>(a.gamma),
                                  .dx = static_cast<T*>(a.dx) + start,
                                  .dgamma = nullptr,
                                  .dbeta = nullptr,
                                  .dim = a.dim,
                                  .mean = {},
                                  .rstd = {}};
  for (int r = 0; r < rows; ++r) {
    if (!a.rms) group.mean[r] = static_cast<const C*>(a.mean)[row + r];
    group.rstd[r] = static_cast<const C*>(a.rstd)[row + r];
  }
  return group;
}

// out[i] (+)= the chunks' sums, whose elements lie as those of a pair, in the chunks' order.
template <class T>
void CombinePairChunks(const cpu::PartialSums<Compute<T>>& sums, std::int64_t chunks, T* out,
                       std::int64_t dim, bool accumulate) {
  constexpr std::int64_t grain = 1024;  // a multiple of every pair's lanes
  parallel_for(0, dim, grain, [&](std::int64_t first, std::int64_t last) HWY_ATTR {
    const Tag<T> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    ForEachPair<T>(last - first, [&](std::int64_t i, auto access) HWY_ATTR {
      Pair<T> sum = ZeroPair<T>();
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        const Compute<T>* part = sums.row(chunk) + first + i;
        sum = AddPairs<T>(sum, {hn::LoadU(d, part), hn::LoadU(d, part + lanes)});
      }
      T* where = out + first + i;
      if (accumulate) sum = AddPairs<T>(access.Load(where), sum);
      access.Store(sum, where);
    });
  });
}

template <class T>
void NormBackwardOf(const NormBackward& a) {
  const bool sums = a.dgamma != nullptr || a.dbeta != nullptr;
  const cpu::RowChunks chunks(a.rows);
  const cpu::PartialSums<Compute<T>> dgamma(sums ? chunks.count : 0, a.dim);
  const cpu::PartialSums<Compute<T>> dbeta(sums ? chunks.count : 0, a.dim);
  const auto run_rows = [&](std::int64_t chunk, std::int64_t row, auto count) {
    auto group = BackwardRows<count.value, T>(a, row);
    if (sums) {
      group.dgamma = dgamma.row(chunk);
      group.dbeta = dbeta.row(chunk);
    }
    if (sums && a.gamma != nullptr) return group.template Run<true, true>(a.rms);
    if (sums) return group.template Run<false, true>(a.rms);
    if (a.gamma != nullptr) return group.template Run<true, false>(a.rms);
    return group.template Run<false, false>(a.rms);
  };
  const std::int64_t together = GroupRows<T>(a.dim);
  const std::int64_t grain = std::max<std::int64_t>(
      1, cpu::parallel_grain / std::max<std::int64_t>(1, chunks.chunk_rows * a.dim));
  parallel_for(0, chunks.count, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      std::int64_t row = chunks.first(chunk);
      const std::int64_t end = chunks.last(chunk);
      while (row < end) {
        const std::int64_t count = std::min(together, end - row);
        if (count >= 4) {
          run_rows(chunk, row, std::integral_constant<int, 4>{});
          row += 4;
        } else if (count >= 2) {
          run_rows(chunk, row, std::integral_constant<int, 2>{});
          row += 2;
        } else {
          run_rows(chunk, row++, std::integral_constant<int, 1>{});
        }
      }
    }
  });
  if (a.dgamma != nullptr) {
    CombinePairChunks(dgamma, chunks.count, static_cast<T*>(a.dgamma), a.dim, a.accumulate_gamma);
  }
  if (a.dbeta != nullptr) {
    CombinePairChunks(dbeta, chunks.count, static_cast<T*>(a.dbeta), a.dim, a.accumulate_beta);
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

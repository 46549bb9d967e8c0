// Reductions over the middle of three dimensions: along rows, or over rows column by column.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/reduce.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/from_double.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kRowChunk = 4096;    // elements whose sum is in the compute type
constexpr std::int64_t kColumnBlock = 256;  // columns that are reduced together
constexpr std::int64_t kSumRows = 64;       // rows whose column sums are added before the total

// Whether a new value replaces the best one so far.
template <bool largest, class C>
HWY_INLINE bool Better(C value, C best) {
  if (std::isnan(best)) return false;
  return std::isnan(value) || (largest ? value > best : value < best);
}
template <bool largest, class V>
HWY_INLINE V BetterOf(V value, V best) {
  const auto ahead = largest ? hn::Gt(value, best) : hn::Lt(value, best);
  return hn::IfThenElse(hn::Or(ahead, hn::IsNaN(value)), value, best);
}
template <bool largest, class C>
constexpr C Worst() {
  return largest ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::infinity();
}

template <class T>
HWY_INLINE double RowSum(const T* x, std::int64_t n) {
  double total = 0;
  for (std::int64_t start = 0; start < n; start += kRowChunk) {
    const T* part = x + start;
    total += static_cast<double>(LaneSum(
        SumTerms<T>(std::min(kRowChunk, n - start),
                    [&](std::int64_t i, auto access) HWY_ATTR { return access.Load(part + i); })));
  }
  return total;
}

template <bool largest, class T>
HWY_INLINE Compute<T> RowBest(const T* x, std::int64_t n) {
  using C = Compute<T>;
  const Vec<T> worst = hn::Set(Tag<T>(), Worst<largest, C>());
  Vec<T> even = worst, odd = worst;  // two chains, because a comparison waits for the one before
  bool second = false;
  ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
    const Vec<T> value = access.Keep(access.Load(x + i), worst);
    (second ? odd : even) = BetterOf<largest>(value, second ? odd : even);
    second = !second;
  });
  HWY_ALIGN C lanes[hn::MaxLanes(Tag<T>())];
  hn::Store(BetterOf<largest>(odd, even), Tag<T>(), lanes);
  C best = lanes[0];
  for (std::size_t i = 1; i < LaneCount<T>(); ++i) {
    if (Better<largest>(lanes[i], best)) best = lanes[i];
  }
  return best;
}

template <class T>
HWY_INLINE std::int64_t FirstPlace(const T* x, std::int64_t n, Compute<T> value) {
  const bool nan = std::isnan(value);
  for (std::int64_t i = 0; i < n; ++i) {
    const Compute<T> here = to_float(x[i]);
    if (nan ? std::isnan(here) : here == value) return i;
  }
  return 0;
}
HWY_INLINE std::int64_t FirstPlace(const double* x, std::int64_t n, double value) {
  const bool nan = std::isnan(value);
  return std::find_if(x, x + n,
                      [&](double here) { return nan ? std::isnan(here) : here == value; }) -
         x;
}

template <class T>
T Rounded(Compute<T> value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(value);
  }
}

template <class T>
void ReduceRow(const Reduce& a, std::int64_t row) {
  const T* x = static_cast<const T*>(a.x) + row * a.reduced;
  T* out = static_cast<T*>(a.out) + row;
  auto* place = static_cast<std::int64_t*>(a.out) + row;
  switch (a.op) {
    case ReduceOp::sum:
      *out = cpu::from_double<T>(RowSum(x, a.reduced) * a.scale);
      return;
    case ReduceOp::maximum:
      *out = Rounded<T>(RowBest<true>(x, a.reduced));
      return;
    case ReduceOp::minimum:
      *out = Rounded<T>(RowBest<false>(x, a.reduced));
      return;
    case ReduceOp::argmax:
      *place = FirstPlace(x, a.reduced, RowBest<true>(x, a.reduced));
      return;
    case ReduceOp::argmin:
      *place = FirstPlace(x, a.reduced, RowBest<false>(x, a.reduced));
      return;
  }
}

// total[c] = the sum over rows of x[row * inner + c]; four rows at a time, to reduce accesses to
// the sums.
template <class T>
HWY_INLINE void ColumnSums(const T* x, std::int64_t rows, std::int64_t inner, std::int64_t n,
                           Compute<T>* total) {
  using C = Compute<T>;
  const Tag<T> d;
  std::fill_n(total, kColumnBlock, C{0});
  for (std::int64_t start = 0; start < rows; start += kSumRows) {
    HWY_ALIGN C part[kColumnBlock] = {};
    const std::int64_t end = std::min(rows, start + kSumRows);
    std::int64_t r = start;
    for (; r + 4 <= end; r += 4) {
      const T* row = x + r * inner;
      ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
        const auto low = hn::Add(access.Load(row + i), access.Load(row + inner + i));
        const auto high =
            hn::Add(access.Load(row + 2 * inner + i), access.Load(row + 3 * inner + i));
        hn::StoreU(hn::Add(hn::LoadU(d, part + i), hn::Add(low, high)), d, part + i);
      });
    }
    for (; r < end; ++r) {
      const T* row = x + r * inner;
      ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
        hn::StoreU(hn::Add(hn::LoadU(d, part + i), access.Load(row + i)), d, part + i);
      });
    }
    for (std::int64_t i = 0; i < n; ++i) total[i] += part[i];
  }
}

template <bool largest, class T>
HWY_INLINE void ColumnBest(const T* x, std::int64_t rows, std::int64_t inner, std::int64_t n,
                           Compute<T>* best) {
  const Tag<T> d;
  std::fill_n(best, kColumnBlock, Worst<largest, Compute<T>>());
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* row = x + r * inner;
    ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto low = BetterOf<largest>(access.Load(row + i), access.Load(row + inner + i));
      const auto high =
          BetterOf<largest>(access.Load(row + 2 * inner + i), access.Load(row + 3 * inner + i));
      const auto four = BetterOf<largest>(low, high);
      hn::StoreU(BetterOf<largest>(four, hn::LoadU(d, best + i)), d, best + i);
    });
  }
  for (; r < rows; ++r) {
    const T* row = x + r * inner;
    ForEach<T>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      hn::StoreU(BetterOf<largest>(access.Load(row + i), hn::LoadU(d, best + i)), d, best + i);
    });
  }
}

// The first row that has best[c], for each column.
template <class T>
HWY_INLINE void ColumnPlaces(const T* x, std::int64_t rows, std::int64_t inner, std::int64_t n,
                             const Compute<T>* best, std::int64_t* place) {
  std::fill_n(place, n, std::int64_t{0});
  for (std::int64_t r = rows; r-- > 0;) {
    const T* row = x + r * inner;
    HWY_ALIGN Compute<T> values[kColumnBlock];
    ForEach<T>(n, [&](std::int64_t i, auto access)
                      HWY_ATTR { access.Store(access.Load(row + i), values + i); });
    for (std::int64_t i = 0; i < n; ++i) {
      if (values[i] == best[i] || (std::isnan(best[i]) && std::isnan(values[i]))) place[i] = r;
    }
  }
}

template <class T>
void ReduceColumns(const Reduce& a, std::int64_t outer, std::int64_t first) {
  using C = Compute<T>;
  const std::int64_t n = std::min(kColumnBlock, a.inner - first);
  const T* x = static_cast<const T*>(a.x) + outer * a.reduced * a.inner + first;
  T* out = static_cast<T*>(a.out) + outer * a.inner + first;
  HWY_ALIGN C result[kColumnBlock];
  switch (a.op) {
    case ReduceOp::sum:
      ColumnSums(x, a.reduced, a.inner, n, result);
      for (std::int64_t i = 0; i < n; ++i) result[i] *= static_cast<C>(a.scale);
      break;
    case ReduceOp::maximum:
    case ReduceOp::argmax:
      ColumnBest<true>(x, a.reduced, a.inner, n, result);
      break;
    case ReduceOp::minimum:
    case ReduceOp::argmin:
      ColumnBest<false>(x, a.reduced, a.inner, n, result);
      break;
  }
  if (a.op == ReduceOp::argmax || a.op == ReduceOp::argmin) {
    auto* place = static_cast<std::int64_t*>(a.out) + outer * a.inner + first;
    return ColumnPlaces(x, a.reduced, a.inner, n, result, place);
  }
  ForEach<T>(n, [&](std::int64_t i, auto access)
                    HWY_ATTR { access.Store(access.Load(result + i), out + i); });
}

void ReduceVectors(const Reduce& a) {
  cpu::for_floating(a.dtype, "reduce", [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (a.inner == 1) {
      parallel_for(0, a.outer, cpu::rows_grain(a.reduced),
                   [&](std::int64_t first, std::int64_t last) {
                     for (std::int64_t row = first; row < last; ++row) ReduceRow<T>(a, row);
                   });
      return;
    }
    const std::int64_t blocks = (a.inner + kColumnBlock - 1) / kColumnBlock;
    const std::int64_t work = a.reduced * std::min(kColumnBlock, a.inner);
    parallel_for(0, a.outer * blocks, cpu::rows_grain(work),
                 [&](std::int64_t first, std::int64_t last) {
                   for (std::int64_t i = first; i < last; ++i)
                     ReduceColumns<T>(a, i / blocks, i % blocks * kColumnBlock);
                 });
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(ReduceVectors);

void cpu::reduce(const Reduce& a, Queue) {
  TESSERA_REQUIRE(a.op <= ReduceOp::argmin, "reduce: unknown operation {}", static_cast<int>(a.op));
  TESSERA_REQUIRE(a.op == ReduceOp::sum || a.reduced > 0 || a.outer * a.inner == 0,
                  "reduce: the largest or smallest of no elements");
  if (a.outer * a.inner > 0) HWY_DYNAMIC_DISPATCH(ReduceVectors)(a);
}

}  // namespace tessera::kernels
#endif

// SumRows and SumAll: sums over fixed chunks, combined in a fixed order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/sums.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/simd/column_sums-inl.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/from_double.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// sums[i] += the columns of rows [first, last), four rows at a time to reduce accesses to sums.
template <class T>
void AddRows(const T* x, std::int64_t first, std::int64_t last, std::int64_t inner,
             Compute<T>* sums) {
  const Tag<T> d;
  std::int64_t row = first;
  for (; row + 4 <= last; row += 4) {
    const T* x0 = x + row * inner;
    ForEach<T>(inner, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto low = hn::Add(access.Load(x0 + i), access.Load(x0 + inner + i));
      const auto high = hn::Add(access.Load(x0 + 2 * inner + i), access.Load(x0 + 3 * inner + i));
      hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::Add(low, high)), d, sums + i);
    });
  }
  for (; row < last; ++row) {
    const T* x0 = x + row * inner;
    ForEach<T>(inner, [&](std::int64_t i, auto access) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, sums + i), access.Load(x0 + i)), d, sums + i);
    });
  }
}

template <class T>
void SumRowsOf(const SumRows& a) {
  const auto* x = static_cast<const T*>(a.x);
  // Short rows would be mostly tails, so several are summed side by side as one row, then folded.
  const std::int64_t fold = a.inner < 128 ? (256 + a.inner - 1) / a.inner : 1;
  const std::int64_t wide_rows = a.rows / fold;
  const std::int64_t width = a.inner * fold;
  const cpu::RowChunks chunks(wide_rows);
  const std::int64_t spare = fold > 1 ? 1 : 0;  // one more row of sums, for the remainder
  const cpu::PartialSums<Compute<T>> sums(chunks.count + spare, width);
  const std::int64_t grain = std::max<std::int64_t>(
      1, cpu::parallel_grain / std::max<std::int64_t>(1, chunks.chunk_rows * width));
  parallel_for(0, chunks.count, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      AddRows(x, chunks.first(chunk), chunks.last(chunk), width, sums.row(chunk));
    }
  });
  if (fold == 1) {
    CombineChunks(sums, chunks.count, static_cast<T*>(a.out), a.inner, a.accumulate);
    return;
  }
  Compute<T>* rest = sums.row(chunks.count);
  AddRows(x, wide_rows * fold, a.rows, a.inner, rest);
  const cpu::PartialSums<Compute<T>> total(1, a.inner);
  for (std::int64_t i = 0; i < a.inner; ++i) {
    Compute<T> sum = rest[i];
    for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      for (std::int64_t part = 0; part < fold; ++part) {
        sum += sums.row(chunk)[part * a.inner + i];
      }
    }
    total.row(0)[i] = sum;
  }
  CombineChunks(total, 1, static_cast<T*>(a.out), a.inner, a.accumulate);
}

void SumRowsVectors(const SumRows& a) {
  if (a.inner == 0) return;
  cpu::for_floating(a.dtype, "sum_rows",
                    [&](auto tag) { SumRowsOf<typename decltype(tag)::type>(a); });
}

template <class T>
double ChunkSum(const T* x, std::int64_t n) {
  return static_cast<double>(LaneSum(
      SumTerms<T>(n, [&](std::int64_t i, auto access) HWY_ATTR { return access.Load(x + i); })));
}

template <class T>
void SumAllOf(const SumAll& a) {
  const auto* x = static_cast<const T*>(a.x);
  constexpr std::int64_t chunk_size = 4096;
  const std::int64_t chunks = (a.n + chunk_size - 1) / chunk_size;
  std::vector<double> sums(static_cast<std::size_t>(chunks));
  parallel_for(0, chunks, 8, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      const std::int64_t start = chunk * chunk_size;
      sums[static_cast<std::size_t>(chunk)] =
          ChunkSum(x + start, std::min(chunk_size, a.n - start));
    }
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  *static_cast<T*>(a.out) = cpu::from_double<T>(total * a.scale);
}

void SumAllVectors(const SumAll& a) {
  cpu::for_floating(a.dtype, "sum_all",
                    [&](auto tag) { SumAllOf<typename decltype(tag)::type>(a); });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(SumRowsVectors);
HWY_EXPORT(SumAllVectors);

void cpu::sum_rows(const SumRows& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SumRowsVectors)(a);
}
void cpu::sum_all(const SumAll& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SumAllVectors)(a);
}

}  // namespace tessera::kernels
#endif

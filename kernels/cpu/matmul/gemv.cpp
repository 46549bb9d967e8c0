// Products of a few rows with a matrix. One core reads memory fastest from several places at once,
// so the matrix is read as eight streams of rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul/gemv.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

inline constexpr std::int64_t gemv_streams = 8;
// Columns whose sums stay in the first-level cache.
inline constexpr std::int64_t gemv_columns = 4096;

template <class T>
HWY_INLINE Compute<T> Wide(T value) {
  if constexpr (is_16_bit<T>) {
    return to_float(value);
  } else {
    return value;
  }
}

template <class T>
HWY_INLINE void StoreResult(Compute<T> sum, const Gemv& a, std::int64_t row, std::int64_t column) {
  if (a.bias != nullptr) sum += Wide(static_cast<const T*>(a.bias)[column]);
  T& out = static_cast<T*>(a.out)[row * a.n + column];
  if constexpr (is_16_bit<T>) {
    out = from_float<T>(sum);
  } else {
    out = sum;
  }
}

// Columns `first + i * step` for i < count: rows of a [n, k] matrix, each a dot product with x.
template <class T, int count>
HWY_INLINE void DotProducts(const Gemv& a, std::int64_t first, std::int64_t step) {
  const T* const w = static_cast<const T*>(a.w) + first * a.k;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const T* const x = static_cast<const T*>(a.x) + row * a.k;
    Vec<T> sums[count];
    for (Vec<T>& sum : sums) sum = hn::Zero(Tag<T>());
    ForEach<T>(a.k, [&](std::int64_t i, auto access) HWY_ATTR {
      const auto value = access.Keep(access.Load(x + i), hn::Zero(Tag<T>()));
      for (int s = 0; s < count; ++s) {
        const auto weight = access.Keep(access.Load(w + s * step * a.k + i), hn::Zero(Tag<T>()));
        sums[s] = hn::MulAdd(value, weight, sums[s]);
      }
    });
    for (int s = 0; s < count; ++s) StoreResult<T>(LaneSum(sums[s]), a, row, first + s * step);
  }
}

template <class T>
HWY_NOINLINE void RowsOfMatrix(const Gemv& a, std::int64_t first, std::int64_t last) {
  const std::int64_t step = (last - first) / gemv_streams;
  for (std::int64_t j = 0; j < step; ++j) DotProducts<T, gemv_streams>(a, first + j, step);
  for (std::int64_t j = first + step * gemv_streams; j < last; ++j) DotProducts<T, 1>(a, j, 0);
}

// sums[0, columns) += the rows `first + i * step` of a [k, n] matrix from `column` on, i < count,
// times their elements of x.
template <class T, int count>
HWY_INLINE void AddRows(const Gemv& a, const T* x, std::int64_t first, std::int64_t step,
                        std::int64_t column, std::int64_t columns, Compute<T>* sums) {
  const T* const w = static_cast<const T*>(a.w) + first * a.n + column;
  Vec<T> factors[count];
  for (int s = 0; s < count; ++s) factors[s] = hn::Set(Tag<T>(), Wide(x[first + s * step]));
  ForEach<T>(columns, [&](std::int64_t j, auto access) HWY_ATTR {
    auto sum = access.Load(sums + j);
    for (int s = 0; s < count; ++s) {
      sum = hn::MulAdd(factors[s], access.Load(w + s * step * a.n + j), sum);
    }
    access.Store(sum, sums + j);
  });
}

template <class T>
HWY_NOINLINE void ColumnsOfMatrix(const Gemv& a, std::int64_t first, std::int64_t last,
                                  Compute<T>* sums) {
  const std::int64_t step = a.k / gemv_streams;
  for (std::int64_t column = first; column < last; column += gemv_columns) {
    const std::int64_t columns = std::min(gemv_columns, last - column);
    std::fill_n(sums, a.rows * columns, Compute<T>{0});
    for (std::int64_t i = 0; i < step; ++i) {
      for (std::int64_t row = 0; row < a.rows; ++row) {
        AddRows<T, gemv_streams>(a, static_cast<const T*>(a.x) + row * a.k, i, step, column,
                                 columns, sums + row * columns);
      }
    }
    for (std::int64_t row = 0; row < a.rows; ++row) {
      for (std::int64_t i = step * gemv_streams; i < a.k; ++i) {
        AddRows<T, 1>(a, static_cast<const T*>(a.x) + row * a.k, i, 0, column, columns,
                      sums + row * columns);
      }
      for (std::int64_t j = 0; j < columns; ++j) {
        StoreResult<T>(sums[row * columns + j], a, row, column + j);
      }
    }
  }
}

template <class T>
void GemvOf(const Gemv& a, std::int64_t first, std::int64_t last) {
  if (a.transposed) return RowsOfMatrix<T>(a, first, last);
  static thread_local cpu::ScratchBuffer buffer;
  ColumnsOfMatrix<T>(a, first, last,
                     buffer.get<Compute<T>>(a.rows * std::min(gemv_columns, last - first)));
}

void GemvRange(const Gemv& a, std::int64_t first, std::int64_t last) {
  cpu::for_floating(a.dtype, "gemv",
                    [&](auto tag) { GemvOf<typename decltype(tag)::type>(a, first, last); });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {
HWY_EXPORT(GemvRange);
}  // namespace

void cpu::gemv(const Gemv& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.dtype), "gemv: {} is not a floating type", name_of(a.dtype));
  TESSERA_REQUIRE(a.rows >= 0 && a.n >= 0 && a.k >= 0, "gemv: sizes {}, {} and {}", a.rows, a.n,
                  a.k);
  // In units of 64 columns: a thread's share begins at a cache line if the matrix does.
  constexpr std::int64_t block = 64;
  const std::int64_t grain =
      std::max<std::int64_t>(1, (std::int64_t{1} << 17) / std::max<std::int64_t>(1, block * a.k));
  parallel_for(0, (a.n + block - 1) / block, grain, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(GemvRange)(a, first * block, std::min(a.n, last * block));
  });
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

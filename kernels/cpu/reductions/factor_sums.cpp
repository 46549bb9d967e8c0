// Sums of squares of the rows and columns of matrices, and the moments that they make.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reductions/factor_sums.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/simd-inl.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/element.h"
#include "kernels/registry.h"

#ifndef TESSERA_KERNELS_CPU_FACTOR_SUMS_ONCE_
#define TESSERA_KERNELS_CPU_FACTOR_SUMS_ONCE_
namespace tessera::kernels {
namespace {

// The scales of FactorSums: squares times `high` and rests times `low` are cut to integers.
struct FactorScales {
  double high, low;
  double unit;  // the value of 1 in the high sums

  FactorScales(double total, std::int64_t rows, std::int64_t columns) {
    const int bits = std::bit_width(static_cast<std::uint64_t>(std::max(rows, columns)));
    low = std::ldexp(1.0, 52 - bits);
    if (!std::isfinite(total)) {
      high = unit = total - total;  // NaN
      return;
    }
    int exponent = 0;
    (void)std::frexp(total, &exponent);
    exponent = std::max(exponent, -900);
    high = std::ldexp(1.0, 52 - exponent);
    unit = std::ldexp(1.0, exponent - 52);
  }
};

// Neighbouring elements of one row, and the columns' sums there.
struct FactorRow {
  const void* grad;
  std::int64_t count;
  double* column_high;
  double* column_low;
};
using FactorPair = std::array<double, 2>;  // high, low

}  // namespace
}  // namespace tessera::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Gradients are widened for this many elements at a time, in the first-level cache.
constexpr std::int64_t kFactorTile = 256;

template <class T>
HWY_NOINLINE FactorPair AddFactorRow(const FactorRow& row, float grad_scale,
                                     const FactorScales& scales) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<Compute<T>, decltype(d)> narrow;
  const auto high_scale = hn::Set(d, scales.high), low_scale = hn::Set(d, scales.low);
  const auto factor = hn::Set(Tag<T>(), static_cast<Compute<T>>(grad_scale));
  auto row_high = hn::Zero(d), row_low = hn::Zero(d);
  // Elements above the end are zero, and add nothing.
  HWY_ALIGN Compute<T> tile[kFactorTile + hn::MaxLanes(Tag<T>())];
  for (std::int64_t first = 0; first < row.count; first += kFactorTile) {
    const std::int64_t count = std::min(kFactorTile, row.count - first);
    const T* grad = static_cast<const T*>(row.grad) + first;
    ForEach<T>(count, [&](std::int64_t i, auto access) HWY_ATTR {
      hn::StoreU(hn::Mul(access.Load(grad + i), factor), Tag<T>(), tile + i);
    });
    double* column_high = row.column_high + first;
    double* column_low = row.column_low + first;
    ForEach<double>(count, [&](std::int64_t i, auto access) HWY_ATTR {
      hn::Vec<decltype(d)> g;
      if constexpr (std::is_same_v<T, double>) {
        g = hn::LoadU(d, tile + i);
      } else {
        g = hn::PromoteTo(d, hn::LoadU(narrow, tile + i));
      }
      const auto x = hn::Mul(hn::Mul(g, g), high_scale);
      const auto high = hn::Floor(x);
      const auto low = hn::Floor(hn::Mul(hn::Sub(x, high), low_scale));
      row_high = hn::Add(row_high, high);
      row_low = hn::Add(row_low, low);
      access.Store(hn::Add(access.Load(column_high + i), high), column_high + i);
      access.Store(hn::Add(access.Load(column_low + i), low), column_low + i);
    });
  }
  return {LaneSum(row_high), LaneSum(row_low)};
}

FactorPair AddRow(const FactorRow& row, DType dtype, float grad_scale, const FactorScales& scales) {
  FactorPair sums{};
  cpu::for_floating(dtype, "factor_sums", [&](auto tag) {
    sums = AddFactorRow<typename decltype(tag)::type>(row, grad_scale, scales);
  });
  return sums;
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
namespace {

HWY_EXPORT(AddRow);

// Adds elements [begin, end) of the part, which are of one matrix. `columns` is memory for the
// columns' sums.
void add_part_of_matrix(const FactorSums& a, std::int64_t begin, std::int64_t end,
                        const FactorScales& scales, std::vector<double>& columns,
                        std::mutex& mutex) {
  const std::int64_t matrix = (a.first + begin) / (a.rows * a.columns);
  const std::int64_t first_row = (a.first + begin) / a.columns;
  const std::int64_t end_row = (a.first + end - 1) / a.columns + 1;
  columns.assign(static_cast<std::size_t>(2 * a.columns), 0.0);
  std::vector<FactorPair> rows(static_cast<std::size_t>(end_row - first_row));
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t column = (a.first + i) % a.columns;
    const std::int64_t count = std::min(end - i, a.columns - column);
    const FactorRow row{cpu::element(a.grad, a.dtype, i), count, columns.data() + column,
                        columns.data() + a.columns + column};
    rows[static_cast<std::size_t>((a.first + i) / a.columns - first_row)] =
        HWY_DYNAMIC_DISPATCH(AddRow)(row, a.dtype, a.grad_scale, scales);
    i += count;
  }
  // Integers, so the order in which threads arrive does not matter.
  const std::lock_guard lock(mutex);
  for (std::int64_t r = first_row; r < end_row; ++r) {
    const FactorPair& row = rows[static_cast<std::size_t>(r - first_row)];
    a.row_sums[r] += row[0];
    a.row_sums[a.matrices * a.rows + r] += row[1];
  }
  double* const high = a.column_sums + matrix * a.columns;
  double* const low = high + a.matrices * a.columns;
  for (std::int64_t c = 0; c < a.columns; ++c) {
    high[c] += columns[static_cast<std::size_t>(c)];
    low[c] += columns[static_cast<std::size_t>(a.columns + c)];
  }
}

// The sum of the rows' moments in the order that FactorUpdate gives.
template <class T>
double sum_of_rows(const T* row_var, std::int64_t rows) {
  constexpr std::int64_t partials = 256;
  std::array<double, partials> sums{};
  for (std::int64_t r = 0; r < rows; ++r)
    sums[static_cast<std::size_t>(r % partials)] += static_cast<double>(row_var[r]);
  for (std::size_t half = partials / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

template <class T>
void update_factors(const FactorUpdate& a) {
  const FactorScales scales(*a.total, a.rows, a.columns);
  const auto moved = [&](T old, double high, double low, std::int64_t count) {
    const double mean =
        (high + low / scales.low) * (scales.unit * (1 / static_cast<double>(count)));
    return static_cast<T>((1 - a.weight) * static_cast<double>(old) + a.weight * mean);
  };
  const std::int64_t all_rows = a.matrices * a.rows, all_columns = a.matrices * a.columns;
  T* const row_var = static_cast<T*>(a.row_var);
  T* const column_var = static_cast<T*>(a.column_var);
  T* const factors = static_cast<T*>(a.row_factors);
  parallel_for(0, all_columns, std::int64_t{1} << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      column_var[c] =
          moved(column_var[c], a.column_sums[c], a.column_sums[all_columns + c], a.rows);
    }
  });
  for (std::int64_t matrix = 0; matrix < a.matrices; ++matrix) {
    const std::int64_t first = matrix * a.rows;
    for (std::int64_t r = first; r < first + a.rows; ++r) {
      row_var[r] = moved(row_var[r], a.row_sums[r], a.row_sums[all_rows + r], a.columns);
    }
    const double mean = sum_of_rows(row_var + first, a.rows) * (1 / static_cast<double>(a.rows));
    const double reciprocal = 1 / (mean < a.eps ? a.eps : mean);
    for (std::int64_t r = first; r < first + a.rows; ++r) {
      factors[r] = static_cast<T>(static_cast<double>(row_var[r]) * reciprocal);
    }
  }
}

}  // namespace

void cpu::factor_sums(const FactorSums& a, Queue) {
  TESSERA_REQUIRE(is_floating(a.dtype), "factor_sums: {} is not a floating type", name_of(a.dtype));
  if (a.n == 0) return;
  const FactorScales scales(*a.total, a.rows, a.columns);
  std::mutex mutex;
  // Enough elements that adding the columns' sums to those of all threads is little work.
  const std::int64_t grain = std::max<std::int64_t>(1 << 15, 16 * a.columns);
  parallel_for(0, a.n, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t matrix = a.rows * a.columns;
    std::vector<double> columns;
    while (begin < end) {
      const std::int64_t last = std::min(end, ((a.first + begin) / matrix + 1) * matrix - a.first);
      add_part_of_matrix(a, begin, last, scales, columns, mutex);
      begin = last;
    }
  });
}

void cpu::factor_update(const FactorUpdate& a, Queue) {
  if (a.dtype == DType::float64) return update_factors<double>(a);
  TESSERA_REQUIRE(a.dtype == DType::float32, "factor_update: moments of {}; they are fp32 or fp64",
                  name_of(a.dtype));
  update_factors<float>(a);
}

}  // namespace tessera::kernels
#endif  // HWY_ONCE

// Sums of squares of the rows and columns of matrices, and the moments that they make. The sums are
// integers in fp64, added by atomic operations: their order changes no bit, and the bits are the
// CPU's.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cuda/device/arithmetic.h"
#include "kernels/cuda/device/block_reduce.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int factor_rows = 32;         // rows of a tile
constexpr int factor_lane_columns = 4;  // columns of a thread
constexpr int most_factor_threads = 256;
constexpr int update_threads = 256;  // the partial sums of FactorUpdate's mean

// Scales of FactorSums: see kernels/adafactor.h. low = 2^low_bits.
struct DeviceFactorScales {
  double high, low, unit;

  __device__ __forceinline__ DeviceFactorScales(double total, int low_bits)
      : high(total - total), low(ldexp(1.0, low_bits)), unit(high) {
    if (!(high == 0)) return;  // NaN
    int exponent = 0;
    (void)frexp(total, &exponent);
    exponent = exponent < -900 ? -900 : exponent;
    high = ldexp(1.0, 52 - exponent);
    unit = ldexp(1.0, exponent - 52);
  }
};

int low_bits_of(std::int64_t rows, std::int64_t columns) {
  return 52 - std::bit_width(static_cast<std::uint64_t>(std::max(rows, columns)));
}

// Places of a stack of matrices, of which elements [first, first + n) are summed.
struct FactorShape {
  std::int64_t first, n, matrices, rows, columns;
  std::int64_t band;  // the number of the first band of rows that has elements
};

// Adds the squares of a tile of 32 rows by 4 * blockDim.x columns to the sums. blockIdx.x counts
// the tiles of a band, blockIdx.y the bands, which lie in one matrix each: band b of matrix m has
// rows 32 b to 32 b + 31 of it. grad: [n] of T, of which each element is read once.
template <class T>
__global__ void __launch_bounds__(most_factor_threads)
    factor_sums_kernel(FactorShape shape, const T* grad, Compute<T> grad_scale, const double* total,
                       int low_bits, double* row_sums, double* column_sums) {
  const DeviceFactorScales scales(*total, low_bits);
  const std::int64_t bands = (shape.rows + factor_rows - 1) / factor_rows;
  const Quotient band = divide(shape.band + static_cast<std::int64_t>(blockIdx.y), bands);
  const std::int64_t matrix = band.quotient;
  const std::int64_t first_row = band.remainder * factor_rows;
  const int threads = static_cast<int>(blockDim.x);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const std::int64_t first_column =
      static_cast<std::int64_t>(blockIdx.x) * threads * factor_lane_columns +
      static_cast<std::int64_t>(threadIdx.x);
  double column_high[factor_lane_columns] = {}, column_low[factor_lane_columns] = {};
  for (int r = 0; r < factor_rows && first_row + r < shape.rows; ++r) {
    const std::int64_t row = matrix * shape.rows + first_row + r;
    double row_high = 0, row_low = 0;
#pragma unroll
    for (int k = 0; k < factor_lane_columns; ++k) {
      const std::int64_t column = first_column + static_cast<std::int64_t>(k) * threads;
      const std::int64_t i = row * shape.columns + column - shape.first;
      if (column >= shape.columns || i < 0 || i >= shape.n) continue;
      const double g = product(to_compute(grad[i]), grad_scale);
      const double x = product(product(g, g), scales.high);
      const double high = floor(x);
      const double low = floor(product(x - high, scales.low));
      column_high[k] += high;
      column_low[k] += low;
      row_high += high;
      row_low += low;
    }
    row_high = warp_reduce<Add>(row_high);
    row_low = warp_reduce<Add>(row_low);
    // Zero where the part has no element of the row.
    if (lane == 0 && !(row_high == 0 && row_low == 0)) {
      atomicAdd(row_sums + row, row_high);
      atomicAdd(row_sums + shape.matrices * shape.rows + row, row_low);
    }
  }
#pragma unroll
  for (int k = 0; k < factor_lane_columns; ++k) {
    const std::int64_t column = first_column + static_cast<std::int64_t>(k) * threads;
    if (column >= shape.columns || (column_high[k] == 0 && column_low[k] == 0)) continue;
    const std::int64_t at = matrix * shape.columns + column;
    atomicAdd(column_sums + at, column_high[k]);
    atomicAdd(column_sums + shape.matrices * shape.columns + at, column_low[k]);
  }
}

struct FactorMoments {
  double weight, eps;
  std::int64_t all_rows, all_columns, rows, columns;
  double part_of_rows, part_of_columns;  // 1 / rows, 1 / columns

  // The moment `old` after the mean of squares; `unit` is that of a high sum over their number.
  template <class T>
  __device__ __forceinline__ T moved(T old, double high, double low, double low_unit,
                                     double unit) const {
    const double mean = product(high + product(low, low_unit), unit);
    return static_cast<T>(product(1 - weight, static_cast<double>(old)) + product(weight, mean));
  }
};

struct FactorPartials {
  double value[update_threads];
};

// Block m updates the moments of matrix m. row_sums: [2, all_rows]; column_sums: [2, all_columns];
// row_var: [all_rows] of T; column_var: [all_columns] of T. reciprocals[m]: 1 / max(mean, eps).
template <class T>
__global__ void __launch_bounds__(update_threads)
    factor_update_kernel(FactorMoments moments, const double* total, int low_bits,
                         const double* row_sums, const double* column_sums, T* row_var,
                         T* column_var, double* reciprocals) {
  const double unit = DeviceFactorScales(*total, low_bits).unit;
  const double low_unit = ldexp(1.0, -low_bits);
  const auto matrix = static_cast<std::int64_t>(blockIdx.x);
  const auto thread = static_cast<std::int64_t>(threadIdx.x);
  const std::int64_t first_column = matrix * moments.columns, first_row = matrix * moments.rows;
  const double unit_of_columns = product(unit, moments.part_of_rows);
  for (std::int64_t c = thread; c < moments.columns; c += update_threads) {
    const std::int64_t at = first_column + c;
    column_var[at] =
        moments.moved(column_var[at], column_sums[at], column_sums[moments.all_columns + at],
                      low_unit, unit_of_columns);
  }
  const double unit_of_rows = product(unit, moments.part_of_columns);
  double sum = 0;
  for (std::int64_t r = thread; r < moments.rows; r += update_threads) {
    const std::int64_t at = first_row + r;
    const T value = moments.moved(row_var[at], row_sums[at], row_sums[moments.all_rows + at],
                                  low_unit, unit_of_rows);
    row_var[at] = value;
    sum += static_cast<double>(value);
  }
  auto& partials = shared_memory<FactorPartials>();
  partials.value[thread] = sum;
  __syncthreads();
  for (int half = update_threads / 2; half > 0; half /= 2) {
    if (thread < half) partials.value[thread] += partials.value[thread + half];
    __syncthreads();
  }
  if (thread == 0) {
    const double mean = product(partials.value[0], moments.part_of_rows);
    reciprocals[matrix] = 1 / (mean < moments.eps ? moments.eps : mean);
  }
}

// row_factors = row_var * reciprocals of their matrices: [all_rows] of T, and [matrices].
template <class T>
__global__ void __launch_bounds__(update_threads)
    row_factors_kernel(std::int64_t all_rows, std::int64_t rows, const double* reciprocals,
                       const T* row_var, T* row_factors) {
  std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * update_threads +
                   static_cast<std::int64_t>(threadIdx.x);
  for (; r < all_rows; r += static_cast<std::int64_t>(gridDim.x) * update_threads) {
    const double reciprocal = reciprocals[divide(r, rows).quotient];
    row_factors[r] = static_cast<T>(product(static_cast<double>(row_var[r]), reciprocal));
  }
}

template <class T>
void run_factor_sums(const FactorSums& a, Queue queue) {
  if (a.n == 0) return;
  const std::int64_t bands = (a.rows + factor_rows - 1) / factor_rows;
  const auto band_of = [&](std::int64_t element) {
    const std::int64_t row = element / a.columns;
    return row / a.rows * bands + row % a.rows / factor_rows;
  };
  constexpr std::int64_t most_bands = 65535;  // the grid's limit
  const std::int64_t end = band_of(a.first + a.n - 1) + 1;
  const auto threads = static_cast<unsigned>(std::min<std::int64_t>(
      most_factor_threads, (a.columns + warp_size * factor_lane_columns - 1) /
                               (warp_size * factor_lane_columns) * warp_size));
  const unsigned across = blocks_for(a.columns, threads * factor_lane_columns);
  for (std::int64_t band = band_of(a.first); band < end; band += most_bands) {
    const FactorShape shape{a.first, a.n, a.matrices, a.rows, a.columns, band};
    launch(context_of(queue),
           {"factor_sums",
            {a.n, a.rows, a.columns},
            {reads(a.grad, a.n * static_cast<std::int64_t>(sizeof(T))), reads(a.total, 8),
             writes(a.row_sums, 16 * a.matrices * a.rows),
             writes(a.column_sums, 16 * a.matrices * a.columns)}},
           {dim3(across, static_cast<unsigned>(std::min(most_bands, end - band))), threads},
           factor_sums_kernel<T>, shape, static_cast<const T*>(a.grad),
           static_cast<Compute<T>>(a.grad_scale), a.total, low_bits_of(a.rows, a.columns),
           a.row_sums, a.column_sums);
  }
}

template <class T>
void run_factor_update(const FactorUpdate& a, Queue queue) {
  Context& context = context_of(queue);
  const std::int64_t rows = a.matrices * a.rows, columns = a.matrices * a.columns;
  constexpr auto element = static_cast<std::int64_t>(sizeof(T));
  auto* const reciprocals =
      static_cast<double*>(context.scratch(static_cast<std::size_t>(a.matrices) * sizeof(double)));
  const FactorMoments moments{a.weight,
                              a.eps,
                              rows,
                              columns,
                              a.rows,
                              a.columns,
                              1 / static_cast<double>(a.rows),
                              1 / static_cast<double>(a.columns)};
  launch(context,
         {"factor_update",
          {a.matrices, a.rows, a.columns},
          {reads(a.total, 8), reads(a.row_sums, 16 * rows), reads(a.column_sums, 16 * columns),
           writes(a.row_var, rows * element), writes(a.column_var, columns * element),
           writes(reciprocals, 8 * a.matrices)}},
         {static_cast<unsigned>(a.matrices), update_threads}, factor_update_kernel<T>, moments,
         a.total, low_bits_of(a.rows, a.columns), a.row_sums, a.column_sums,
         static_cast<T*>(a.row_var), static_cast<T*>(a.column_var), reciprocals);
  launch(context,
         {"factor_update rows",
          {a.matrices, a.rows},
          {reads(reciprocals, 8 * a.matrices), reads(a.row_var, rows * element),
           writes(a.row_factors, rows * element)}},
         {blocks_for(rows, update_threads), update_threads}, row_factors_kernel<T>, rows, a.rows,
         reciprocals, static_cast<const T*>(a.row_var), static_cast<T*>(a.row_factors));
}

}  // namespace

void factor_sums(const FactorSums& a, Queue queue) {
  for_floating(a.dtype, "factor_sums",
               [&](auto tag) { run_factor_sums<typename decltype(tag)::type>(a, queue); });
}

void factor_update(const FactorUpdate& a, Queue queue) {
  if (a.dtype == DType::float64) return run_factor_update<double>(a, queue);
  if (a.dtype != DType::float32) unsupported("factor_update", a.dtype);
  run_factor_update<float>(a, queue);
}

}  // namespace tessera::kernels::cuda

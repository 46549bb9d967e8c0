// The sums of rows and columns, their moments, and exact sums as numbers have the CPU's bits on the
// GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct FactorStack {
  std::int64_t matrices, rows, columns;
  [[nodiscard]] std::int64_t elements() const { return matrices * rows * columns; }
};

// Elements [first, first + n) of a stack, and what becomes of them.
struct FactorArrays {
  FactorStack stack;
  std::int64_t first, n;
  MirroredArray grad, total, row_sums, column_sums, row_var, column_var, row_factors;

  FactorArrays(FactorStack of, std::int64_t from, std::int64_t count, DType dtype, DType moments,
               double sum = -1)
      : stack(of),
        first(from),
        n(count),
        grad(random_values(static_cast<std::size_t>(count), dtype, 1), dtype, 1),
        total(std::vector<double>{sum < 0 ? static_cast<double>(4 * count + 1) : sum}, float64),
        row_sums(std::vector<double>(size(2 * of.matrices * of.rows)), float64),
        column_sums(std::vector<double>(size(2 * of.matrices * of.columns)), float64),
        row_var(std::vector<double>(size(of.matrices * of.rows), 0.5), moments),
        column_var(std::vector<double>(size(of.matrices * of.columns), 0.5), moments),
        row_factors(std::vector<double>(size(of.matrices * of.rows)), moments) {}
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

  static void* memory(MirroredArray& array, bool device) {
    return device ? array.device() : array.host();
  }
  static double* numbers(MirroredArray& array, bool device) {
    return static_cast<double*>(memory(array, device));
  }
  kernels::FactorSums sums(bool device) {
    return {.grad = memory(grad, device),
            .total = numbers(total, device),
            .row_sums = numbers(row_sums, device),
            .column_sums = numbers(column_sums, device),
            .first = first,
            .n = n,
            .matrices = stack.matrices,
            .rows = stack.rows,
            .columns = stack.columns,
            .dtype = grad.dtype(),
            .grad_scale = 0.75f};
  }
  kernels::FactorUpdate update(bool device) {
    return {.total = numbers(total, device),
            .row_sums = numbers(row_sums, device),
            .column_sums = numbers(column_sums, device),
            .row_var = memory(row_var, device),
            .column_var = memory(column_var, device),
            .row_factors = memory(row_factors, device),
            .matrices = stack.matrices,
            .rows = stack.rows,
            .columns = stack.columns,
            .dtype = row_var.dtype(),
            .weight = 0.3,
            .eps = 0.1};
  }
  void run_on_both() {
    TestContext context;
    for (int step = 0; step < 2; ++step) {
      kernels::cuda::factor_sums(sums(true), context.queue());
      kernels::cpu::factor_sums(sums(false));
      kernels::cuda::factor_update(update(true), context.queue());
      kernels::cpu::factor_update(update(false));
    }
    context.synchronize();
  }
  void expect_same() const {
    for (const MirroredArray* array : {&row_sums, &column_sums})
      array->expect_same("factor_sums", "sums");
    for (const MirroredArray* array : {&row_var, &column_var, &row_factors})
      array->expect_same("factor_update", "moments");
  }
};

TEST(CudaFactorSums, HaveTheCpusBits) {
  for (const DType dtype : floating_dtypes) {
    for (const FactorStack stack :
         {FactorStack{1, 1, 1}, {1, 33, 70}, {3, 40, 5}, {2, 3, 1200}, {1, 300, 2}}) {
      FactorArrays whole(stack, 0, stack.elements(), dtype, dtype == float64 ? float64 : float32);
      whole.run_on_both();
      whole.expect_same();
    }
  }
}

// Parts that begin and end inside of rows, and an empty one.
TEST(CudaFactorSums, OfParts) {
  const FactorStack stack{3, 37, 61};
  for (const std::int64_t first : {0, 1, 60, 61, 2256, 2300, 6000}) {
    for (const std::int64_t n : {0, 1, 61, 700}) {
      FactorArrays part(stack, first, n, bfloat16, float32);
      part.run_on_both();
      part.expect_same();
    }
  }
}

TEST(CudaFactorSums, ScalesThatAreExtremeOrNotFinite) {
  for (const double total : {0.0, 1e-310, 1e300, std::numeric_limits<double>::infinity()}) {
    FactorArrays all({1, 5, 40}, 0, 200, float32, float32, total);
    if (total == 0 || total == 1e-310) {
      std::memset(all.grad.host(), 0, 800);
      TESSERA_CUDA(cudaMemset(all.grad.device(), 0, 800));
    }
    all.run_on_both();
    if (std::isfinite(total)) {
      all.expect_same();
      continue;
    }
    for (const MirroredArray* array : {&all.row_factors, &all.column_var}) {
      for (const double value : array->device_values()) EXPECT_TRUE(std::isnan(value));
      for (const double value : array->host_values()) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(CudaFactorSums, RefusesTypesThatItCannotAdd) {
  TestContext context;
  FactorArrays all({1, 2, 2}, 0, 4, float32, float32);
  kernels::FactorSums sums = all.sums(true);
  sums.dtype = int32;
  EXPECT_THROW(kernels::cuda::factor_sums(sums, context.queue()), std::logic_error);
  kernels::FactorUpdate update = all.update(true);
  update.dtype = bfloat16;
  EXPECT_THROW(kernels::cuda::factor_update(update, context.queue()), std::logic_error);
}

TEST(CudaExactLimbs, HaveTheCpusBits) {
  std::vector<kernels::ExactSum> sums(4);
  sums[0].add(1e300);
  sums[0].add(3.5e-290);
  for (int i = 0; i < 1000; ++i) sums[1].add(0.1 * i);
  sums[2].add(std::numeric_limits<double>::max());
  sums[2].add(std::numeric_limits<double>::max());
  for (kernels::ExactSum& sum : sums) sum.normalize();
  constexpr std::int64_t n = 4;
  std::vector<std::byte> bytes(sizeof(kernels::ExactSum) * n);
  std::memcpy(bytes.data(), static_cast<const void*>(sums.data()), bytes.size());
  const DeviceMemory memory(bytes);
  MirroredArray numbers(std::vector<double>(n * kernels::ExactSum::limbs), float64);
  MirroredArray totals(std::vector<double>(n), float64);
  TestContext context;
  const auto as_numbers = [](void* at) { return static_cast<double*>(at); };
  kernels::cuda::exact_limbs({memory.as<kernels::ExactSum>(), as_numbers(numbers.device()), n},
                             context.queue());
  kernels::cuda::exact_totals({as_numbers(numbers.device()), as_numbers(totals.device()), n},
                              context.queue());
  kernels::cpu::exact_limbs({sums.data(), as_numbers(numbers.host()), n});
  kernels::cpu::exact_totals({as_numbers(numbers.host()), as_numbers(totals.host()), n});
  context.synchronize();
  numbers.expect_same("exact_limbs", "numbers");
  totals.expect_same("exact_totals", "totals");
}

TEST(CudaExactLimbs, NotFiniteIsNaN) {
  kernels::ExactSum sum;
  sum.add(std::numeric_limits<double>::infinity());
  std::vector<std::byte> bytes(sizeof(sum));
  std::memcpy(bytes.data(), static_cast<const void*>(&sum), bytes.size());
  const DeviceMemory memory(bytes), numbers(kernels::ExactSum::limbs * 8), total(8);
  TestContext context;
  kernels::cuda::exact_limbs({memory.as<kernels::ExactSum>(), numbers.as<double>(), 1},
                             context.queue());
  kernels::cuda::exact_totals({numbers.as<double>(), total.as<double>(), 1}, context.queue());
  context.synchronize();
  EXPECT_TRUE(std::isnan(total.read(float64)[0]));
}

}  // namespace
}  // namespace tessera::testing

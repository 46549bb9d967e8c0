// Sums of squares of rows and columns, and the moments that they make: against plain fp64 sums, and
// with the same bits for every cut and number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::to_compute;

struct Stack {
  std::int64_t matrices, rows, columns;
  [[nodiscard]] std::int64_t elements() const { return matrices * rows * columns; }
};

template <class T>
struct FactorRun {
  Stack stack;
  std::vector<T> grad;
  double total = 0;
  std::vector<double> row_sums, column_sums;

  // Row r is 2^(-spread * r) times as large as row 0.
  explicit FactorRun(Stack of, double spread = 0)
      : stack(of),
        grad(static_cast<std::size_t>(of.elements())),
        row_sums(static_cast<std::size_t>(2 * of.matrices * of.rows)),
        column_sums(static_cast<std::size_t>(2 * of.matrices * of.columns)) {
    std::mt19937 generator(7);
    std::normal_distribution<double> distribution;
    for (std::int64_t i = 0; i < of.elements(); ++i) {
      const auto row = static_cast<double>(i / of.columns % of.rows);
      grad[static_cast<std::size_t>(i)] =
          narrow<T>(distribution(generator) * std::exp2(-spread * row));
    }
    for (const T& value : grad) total += square(value);
  }
  static double square(T value) {
    const auto g = to_compute(value) * static_cast<decltype(to_compute(value))>(0.25f);
    return static_cast<double>(g) * static_cast<double>(g);
  }
  void add(std::int64_t first, std::int64_t n) {
    cpu::factor_sums({.grad = grad.data() + first,
                      .total = &total,
                      .row_sums = row_sums.data(),
                      .column_sums = column_sums.data(),
                      .first = first,
                      .n = n,
                      .matrices = stack.matrices,
                      .rows = stack.rows,
                      .columns = stack.columns,
                      .dtype = dtype_of<T>,
                      .grad_scale = 0.25f});
  }
  [[nodiscard]] bool has_sums_of(const FactorRun& other) const {
    return row_sums == other.row_sums && column_sums == other.column_sums;
  }
};

struct Moments {
  std::vector<float> rows, columns, factors;

  explicit Moments(Stack stack)
      : rows(static_cast<std::size_t>(stack.matrices * stack.rows)),
        columns(static_cast<std::size_t>(stack.matrices * stack.columns)),
        factors(rows.size()) {}
  template <class T>
  void update(const FactorRun<T>& run, double weight, double eps = 1e-9) {
    cpu::factor_update({.total = &run.total,
                        .row_sums = run.row_sums.data(),
                        .column_sums = run.column_sums.data(),
                        .row_var = rows.data(),
                        .column_var = columns.data(),
                        .row_factors = factors.data(),
                        .matrices = run.stack.matrices,
                        .rows = run.stack.rows,
                        .columns = run.stack.columns,
                        .dtype = float32,
                        .weight = weight,
                        .eps = eps});
  }
};

void expect_close(float got, double wanted, double tolerance) {
  EXPECT_LE(std::abs(static_cast<double>(got) - wanted), tolerance * wanted + 1e-45) << wanted;
}

// Rows and columns get the means of their squares, rounded to fp32.
template <class T>
void check_means(Stack stack, double spread) {
  FactorRun<T> run(stack, spread);
  run.add(0, stack.elements());
  Moments moments(stack);
  moments.update(run, 1);
  for (std::int64_t m = 0; m < stack.matrices; ++m) {
    double mean = 0;
    const auto at = [&](std::int64_t r, std::int64_t c) {
      return FactorRun<T>::square(
          run.grad[static_cast<std::size_t>((m * stack.rows + r) * stack.columns + c)]);
    };
    for (std::int64_t r = 0; r < stack.rows; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < stack.columns; ++c) sum += at(r, c);
      const float got = moments.rows[static_cast<std::size_t>(m * stack.rows + r)];
      expect_close(got, sum / static_cast<double>(stack.columns), 1.01 * 0x1p-24);
      mean += static_cast<double>(got) / static_cast<double>(stack.rows);
    }
    for (std::int64_t c = 0; c < stack.columns; ++c) {
      double sum = 0;
      for (std::int64_t r = 0; r < stack.rows; ++r) sum += at(r, c);
      expect_close(moments.columns[static_cast<std::size_t>(m * stack.columns + c)],
                   sum / static_cast<double>(stack.rows), 1.01 * 0x1p-24);
    }
    for (std::int64_t r = 0; r < stack.rows; ++r) {
      const auto i = static_cast<std::size_t>(m * stack.rows + r);
      expect_close(moments.factors[i], static_cast<double>(moments.rows[i]) / std::max(mean, 1e-9),
                   1.01 * 0x1p-24);
    }
  }
}

TEST(FactorSums, AreTheMeansOfSquares) {
  for (const Stack stack : {Stack{1, 1, 1}, {1, 5, 7}, {3, 11, 301}, {2, 300, 3}, {1, 1, 1000}}) {
    check_means<float>(stack, 0);
    check_means<BFloat16>(stack, 0);
    check_means<Float16>(stack, 0);
    check_means<double>(stack, 0);
  }
  // The last rows are 2^-20 as large as the first one.
  check_means<float>({1, 21, 50}, 1);
}

TEST(FactorSums, CutsAndThreadsChangeNoBit) {
  const Stack stack{3, 101, 257};
  FactorRun<BFloat16> whole(stack);
  whole.add(0, stack.elements());
  const int threads = compute_threads();
  for (const int workers : {1, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t cut : {1, 256, 257, 20000, 25957, 51915, 77870}) {
      FactorRun<BFloat16> parts(stack);
      parts.add(cut, stack.elements() - cut);
      parts.add(0, cut);
      EXPECT_TRUE(parts.has_sums_of(whole)) << cut << " with " << workers;
    }
  }
  set_compute_threads(threads);
}

// 2^30 times smaller squares than the largest are kept to many bits; the sums are whole numbers.
TEST(FactorSums, AreWholeNumbers) {
  FactorRun<float> run({1, 40, 333}, 0.7);
  run.add(0, run.stack.elements());
  for (const std::vector<double>* sums : {&run.row_sums, &run.column_sums}) {
    for (const double sum : *sums) {
      EXPECT_EQ(sum, std::floor(sum));
      EXPECT_LT(sum, 0x1p53);
    }
  }
}

TEST(FactorUpdate, MovesByItsWeight) {
  FactorRun<float> run({1, 3, 4});
  run.add(0, 12);
  Moments once(run.stack), twice(run.stack);
  once.update(run, 1);
  twice.update(run, 0.25);
  twice.update(run, 0.25);
  for (std::size_t i = 0; i < once.rows.size(); ++i) {
    expect_close(twice.rows[i], 0.4375 * static_cast<double>(once.rows[i]), 1e-6);
  }
  // Below the least mean: factors are the moments over it.
  once.update(run, 1, 1e9);
  expect_close(once.factors[0], static_cast<double>(once.rows[0]) / 1e9, 1e-6);
}

TEST(FactorUpdate, NoGradientIsZeroAndNaNStays) {
  FactorRun<float> run({1, 3, 4});
  std::fill(run.grad.begin(), run.grad.end(), 0.0f);
  run.total = 0;
  run.add(0, 12);
  Moments moments(run.stack);
  moments.update(run, 1);
  EXPECT_EQ(moments.rows, std::vector<float>(3, 0.0f));
  EXPECT_EQ(moments.factors, std::vector<float>(3, 0.0f));
  for (const double total : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    run.total = total;
    run.add(0, 12);
    moments.update(run, 1);
    for (const float value : moments.factors) EXPECT_TRUE(std::isnan(value));
    for (const float value : moments.columns) EXPECT_TRUE(std::isnan(value));
  }
}

TEST(ExactLimbs, AddOverRanksAsTheSumsDo) {
  std::vector<ExactSum> sums(3);
  sums[0].add(1e300);
  sums[0].add(3.5e-290);
  sums[1].add(0.1);
  sums[2].add(std::numeric_limits<double>::infinity());
  for (ExactSum& sum : sums) sum.normalize();
  std::vector<double> numbers(3 * ExactSum::limbs), totals(3);
  cpu::exact_limbs({sums.data(), numbers.data(), 3});
  cpu::exact_totals({numbers.data(), totals.data(), 3});
  EXPECT_EQ(totals[0], 1e300);
  EXPECT_EQ(totals[1], 0.1);
  EXPECT_TRUE(std::isnan(totals[2]));
  for (double& number : numbers) number *= 3;  // three equal ranks
  cpu::exact_totals({numbers.data(), totals.data(), 3});
  EXPECT_EQ(totals[0], 3e300);
  EXPECT_DOUBLE_EQ(totals[1], 0.1 * 3);
  ExactSum largest;
  largest.add(std::numeric_limits<double>::max());
  largest.add(std::numeric_limits<double>::max());
  largest.normalize();
  cpu::exact_limbs({&largest, numbers.data(), 1});
  cpu::exact_totals({numbers.data(), totals.data(), 1});
  EXPECT_EQ(totals[0], std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace tessera::kernels

// Adafactor's step compared with scalar steps, bit for bit with the same order of operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::same_bits;
using testing::to_compute;

constexpr double adafactor_eps = 1e-3, adafactor_decay = 0.01, adafactor_weight = 0.3;
constexpr double adafactor_param_total = 5.0, adafactor_direction_total = 900.0;

// A stack of matrices, or a vector of as many elements.
template <class T, class Grad>
struct AdafactorRun {
  std::int64_t rows, columns;
  bool is_matrix;
  std::vector<T> param, row_factors, column_var, variance, direction;
  std::vector<Grad> grad;

  AdafactorRun(std::int64_t matrices, std::int64_t r, std::int64_t c, bool matrix)
      : rows(r),
        columns(c),
        is_matrix(matrix),
        param(static_cast<std::size_t>(matrices * r * c)),
        row_factors(static_cast<std::size_t>(matrices * r)),
        column_var(static_cast<std::size_t>(matrices * c)),
        variance(param.size()),
        direction(param.size()),
        grad(param.size()) {
    std::mt19937 generator(3);
    std::normal_distribution<double> normal;
    for (T& value : param) value = narrow<T>(normal(generator));
    for (Grad& value : grad) value = narrow<Grad>(normal(generator));
    for (std::vector<T>* moments : {&row_factors, &column_var, &variance}) {
      for (T& value : *moments) value = narrow<T>(std::abs(normal(generator)));
    }
    for (std::size_t i = 0; i < variance.size(); i += 5) variance[i] = 0;
  }
  [[nodiscard]] AdafactorStep call(std::int64_t first, std::int64_t n) {
    return {.grad = grad.data() + first,
            .row_factors = is_matrix ? row_factors.data() : nullptr,
            .column_var = column_var.data(),
            .variance = variance.data() + first,
            .direction = direction.data() + first,
            .param = param.data() + first,
            .param_total = &adafactor_param_total,
            .direction_total = &adafactor_direction_total,
            .first = first,
            .n = n,
            .rows = rows,
            .columns = columns,
            .dtype = dtype_of<T>,
            .grad_dtype = dtype_of<Grad>,
            .grad_scale = 0.5f,
            .weight = adafactor_weight,
            .eps = adafactor_eps,
            .rate = 0.02,
            .decay = adafactor_decay,
            .least_scale = 1e-3,
            .clip_threshold = 1.5,
            .size = 100};
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(param.size()); }
  void reference() {
    const double scale = std::sqrt(adafactor_param_total / 100);
    const T coefficient = static_cast<T>(0.02 * std::max(1e-3, scale) / (3.0 / 1.5));
    const T least = static_cast<T>(adafactor_eps * adafactor_eps);
    const T weight = static_cast<T>(adafactor_weight), rest = static_cast<T>(1 - adafactor_weight);
    for (std::int64_t i = 0; i < size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const T g = static_cast<T>(to_compute(grad[at])) * T{0.5};
      T v{};
      if (is_matrix) {
        const std::int64_t row = i / columns;
        v = row_factors[static_cast<std::size_t>(row)] *
            column_var[static_cast<std::size_t>(row / rows * columns + i % columns)];
      } else {
        v = variance[at] = rest * variance[at] + weight * g * g;
      }
      const T u = direction[at] = g / std::sqrt(v < least ? least : v);
      param[at] -= static_cast<T>(adafactor_decay) * param[at];
      param[at] -= coefficient * u;
    }
  }
  [[nodiscard]] bool equals(const AdafactorRun& other) const {
    return same_bits(param, other.param) && same_bits(variance, other.variance) &&
           same_bits(direction, other.direction);
  }
};

template <class T, class Grad>
void check_adafactor() {
  for (const bool matrix : {true, false}) {
    for (const std::int64_t columns : {1, 5, 16, 31, 700}) {
      AdafactorRun<T, Grad> got(2, 3, columns, matrix), want(2, 3, columns, matrix);
      for (int step = 0; step < 2; ++step) {
        cpu::adafactor_step(got.call(0, got.size()));
        want.reference();
        EXPECT_TRUE(got.equals(want)) << columns << " columns, " << matrix;
      }
    }
  }
}

TEST(AdafactorStep, EveryTypeBitForBit) {
  check_adafactor<float, float>();
  check_adafactor<float, BFloat16>();
  check_adafactor<float, Float16>();
  check_adafactor<double, double>();
  check_adafactor<double, float>();
  check_adafactor<double, BFloat16>();
}

TEST(AdafactorStep, CutsAndThreadsChangeNoBit) {
  const int threads = compute_threads();
  for (const bool matrix : {true, false}) {
    AdafactorRun<float, BFloat16> whole(3, 101, 257, matrix);
    const auto start = whole;
    set_compute_threads(1);
    cpu::adafactor_step(whole.call(0, whole.size()));
    for (const int workers : {1, 3}) {
      set_compute_threads(workers);
      for (const std::int64_t cut : {1, 256, 257, 25957, 51915, 77870}) {
        auto parts = start;
        cpu::adafactor_step(parts.call(0, cut));
        cpu::adafactor_step(parts.call(cut, whole.size() - cut));
        EXPECT_TRUE(parts.equals(whole)) << cut;
      }
    }
  }
  set_compute_threads(threads);
}

// The direction alone, and then the step alone, are the step.
TEST(AdafactorStep, InTwoPasses) {
  for (const bool matrix : {true, false}) {
    AdafactorRun<float, float> once(1, 7, 33, matrix), twice(1, 7, 33, matrix);
    cpu::adafactor_step(once.call(0, once.size()));
    AdafactorStep step = twice.call(0, twice.size());
    step.param = nullptr;
    step.param_total = step.direction_total = nullptr;
    cpu::adafactor_step(step);
    step = twice.call(0, twice.size());
    step.weight = 0;
    step.direction = nullptr;
    cpu::adafactor_step(step);
    EXPECT_TRUE(twice.equals(once));
  }
}

// Small directions are not scaled up, and a small parameter has the least size.
TEST(AdafactorStep, ClipsAndHasALeastScale) {
  AdafactorRun<double, double> run(1, 1, 1, true);
  run.param = {2};
  run.grad = {1};
  run.row_factors = run.column_var = {1};
  const double zero = 0;
  AdafactorStep step = run.call(0, 1);
  step.grad_scale = 1;
  step.decay = 0;
  step.param_total = step.direction_total = &zero;
  cpu::adafactor_step(step);
  EXPECT_DOUBLE_EQ(run.param[0], 2 - 0.02 * 1e-3);
}

TEST(AdafactorStep, RefusesTypes) {
  AdafactorRun<float, float> run(1, 2, 2, true);
  AdafactorStep step = run.call(0, 4);
  step.grad_dtype = float64;
  EXPECT_THROW(cpu::adafactor_step(step), std::logic_error);
  step.grad_dtype = float32;
  step.dtype = bfloat16;
  EXPECT_THROW(cpu::adafactor_step(step), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

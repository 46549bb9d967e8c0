// Pointwise functions for every instruction set and dtype, with operands that repeat; threads.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

template <class T>
class PointwiseKernel : public ::testing::Test {};
TYPED_TEST_SUITE(PointwiseKernel, testing::FloatingTypes);

struct PointwiseFunction {
  PointwiseOp op;
  double (*exact)(double g, double x, double y);
};

double softplus_exact(double x, double beta, double threshold) {
  return beta * x > threshold ? x : std::log1p(std::exp(beta * x)) / beta;
}

constexpr PointwiseFunction pointwise_functions[] = {
    {PointwiseOp::add, [](double a, double b, double) { return a + b; }},
    {PointwiseOp::subtract, [](double a, double b, double) { return a - b; }},
    {PointwiseOp::multiply, [](double a, double b, double) { return a * b; }},
    {PointwiseOp::divide, [](double a, double b, double) { return a / b; }},
    {PointwiseOp::minimum, [](double a, double b, double) { return std::min(a, b); }},
    {PointwiseOp::maximum, [](double a, double b, double) { return std::max(a, b); }},
    {PointwiseOp::power, [](double a, double b, double) { return std::pow(a, b); }},
    {PointwiseOp::absolute, [](double a, double, double) { return std::abs(a); }},
    {PointwiseOp::reciprocal, [](double a, double, double) { return 1 / a; }},
    {PointwiseOp::reciprocal_sqrt, [](double a, double, double) { return 1 / std::sqrt(a); }},
    {PointwiseOp::sine, [](double a, double, double) { return std::sin(a); }},
    {PointwiseOp::cosine, [](double a, double, double) { return std::cos(a); }},
    {PointwiseOp::softplus, softplus_exact},
    {PointwiseOp::clamp, [](double a, double b, double c) { return std::min(std::max(a, b), c); }},
    {PointwiseOp::minimum_gradient,
     [](double g, double x, double y) { return x < y ? g : (x == y ? g / 2 : 0); }},
    {PointwiseOp::maximum_gradient,
     [](double g, double x, double y) { return x > y ? g : (x == y ? g / 2 : 0); }},
    {PointwiseOp::divisor_gradient, [](double g, double x, double y) { return -g * x / (y * y); }},
    {PointwiseOp::power_gradient,
     [](double g, double x, double y) { return g * y * std::pow(x, y - 1); }},
    {PointwiseOp::power_exponent_gradient,
     [](double g, double x, double y) { return g * std::pow(x, y) * std::log(x); }},
    {PointwiseOp::reciprocal_gradient, [](double g, double x, double) { return -g / (x * x); }},
    {PointwiseOp::reciprocal_sqrt_gradient,
     [](double g, double x, double) { return -g / (2 * x * std::sqrt(x)); }},
    {PointwiseOp::sine_gradient, [](double g, double x, double) { return g * std::cos(x); }},
    {PointwiseOp::cosine_gradient, [](double g, double x, double) { return -g * std::sin(x); }},
};

// Operand 0 is [3, n], operand 1 a row [n], operand 2 a column [3, 1]: positive, so that every
// function is defined.
TYPED_TEST(PointwiseKernel, FunctionsOfRepeatedOperands) {
  using T = TypeParam;
  constexpr std::int64_t rows = 3, columns = 701;
  const auto positive = [](std::int64_t n, unsigned seed) {
    std::vector<double> values = testing::doubles(testing::normals<T>(n, seed));
    for (double& value : values) value = std::abs(value) + 0.25;
    return testing::array_of<T>(values);
  };
  const std::vector<T> a = positive(rows * columns, 1), b = positive(columns, 2),
                       c = positive(rows, 3);
  testing::for_each_target([&] {
    for (const PointwiseFunction& function : pointwise_functions) {
      std::vector<T> out(a.size());
      std::vector<double> wanted(a.size());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < columns; ++i) {
          const auto at = static_cast<std::size_t>(r * columns + i);
          wanted[at] =
              function.exact(testing::widen(a[at]), testing::widen(b[static_cast<std::size_t>(i)]),
                             testing::widen(c[static_cast<std::size_t>(r)]));
        }
      }
      Pointwise call{.op = function.op,
                     .in = {a.data(), b.data(), c.data()},
                     .out = out.data(),
                     .shape = {2, {rows, columns}, {{columns, 1}, {0, 1}, {1, 0}}},
                     .dtype = dtype_of<T>};
      cpu::pointwise(call);
      SCOPED_TRACE(static_cast<int>(function.op));
      testing::expect_close(out, wanted, 40);
    }
  });
}

TYPED_TEST(PointwiseKernel, NumbersInPlaceOfOperandsAndInPlace) {
  using T = TypeParam;
  std::vector<T> x = testing::normals<T>(1500, 4);
  std::vector<double> wanted = testing::doubles(x);
  for (double& value : wanted) value = std::min(std::max(value, -0.5), 0.5);
  cpu::pointwise({.op = PointwiseOp::clamp,
                  .in = {x.data()},
                  .number = {0, -0.5, 0.5},
                  .out = x.data(),
                  .shape = {1, {1500}, {{1}}},
                  .dtype = dtype_of<T>});
  testing::expect_close(x, wanted, 0);
}

TYPED_TEST(PointwiseKernel, AnyNumberOfThreadsGivesTheSameBits) {
  using T = TypeParam;
  const std::vector<T> a = testing::normals<T>(50 * 1021, 5), b = testing::normals<T>(1021, 6);
  testing::expect_thread_invariant([&] {
    std::vector<T> out(a.size());
    cpu::pointwise({.op = PointwiseOp::multiply,
                    .in = {a.data(), b.data()},
                    .out = out.data(),
                    .shape = {2, {50, 1021}, {{1021, 1}, {0, 1}}},
                    .dtype = dtype_of<T>});
    return out;
  });
}

TYPED_TEST(PointwiseKernel, OnlyNotEqualIsTrueForNan) {
  using T = TypeParam;
  const std::vector<T> x = testing::array_of<T>({std::nan(""), 1, 2, 3});
  const std::vector<std::pair<PointwiseOp, std::vector<std::uint8_t>>> comparisons = {
      {PointwiseOp::equal, {0, 0, 1, 0}},   {PointwiseOp::not_equal, {1, 1, 0, 1}},
      {PointwiseOp::less, {0, 1, 0, 0}},    {PointwiseOp::less_equal, {0, 1, 1, 0}},
      {PointwiseOp::greater, {0, 0, 0, 1}}, {PointwiseOp::greater_equal, {0, 0, 1, 1}}};
  testing::for_each_target([&] {
    for (const auto& [op, wanted] : comparisons) {
      std::vector<std::uint8_t> out(4, 9);
      cpu::pointwise({.op = op,
                      .in = {x.data()},
                      .number = {0, 2},
                      .out = out.data(),
                      .shape = {1, {4}, {{1}}},
                      .dtype = dtype_of<T>});
      EXPECT_EQ(out, wanted) << static_cast<int>(op);
    }
  });
}

TEST(PointwiseKernels, RefuseIntegersForArithmetic) {
  std::int32_t x = 1;
  EXPECT_THROW(
      cpu::pointwise(
          {.op = PointwiseOp::add, .in = {&x, &x}, .out = &x, .shape = {}, .dtype = int32}),
      std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

// Compares central differences with the tape.
#include "support/gradient_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/autograd.h"
#include "engine/ops.h"
#include "support/one_thread.h"

namespace tessera::testing {
namespace {

std::set<Op>& reached() {
  static std::set<Op> ops;
  return ops;
}

// Spreads numbers without the state of a generator: multiples of an irrational number, modulo 1.
double spread(std::size_t index, unsigned seed) {
  const double x =
      (static_cast<double>(index) + 1) * 0.6180339887498949 + seed * 0.3819660112501051;
  const double y =
      (x - std::floor(x)) * 7.389056098930650 + static_cast<double>(index % 7) * 0.1371;
  return y - std::floor(y);
}

double evaluate(const std::function<Tensor()>& function) {
  const NoGradGuard no_grad;
  return function().item();
}

void set_element(const Tensor& leaf, std::size_t index, double value) {
  Tensor element =
      Tensor::view_of(leaf.storage(), leaf.impl()->offset + index * sizeof(double), {}, float64);
  element.copy_from(Tensor::scalar(value, float64));
}

double central_difference(const std::function<Tensor()>& function, const Tensor& leaf,
                          std::size_t index, double kept, double step) {
  set_element(leaf, index, kept + step);
  const double above = evaluate(function);
  set_element(leaf, index, kept - step);
  const double below = evaluate(function);
  set_element(leaf, index, kept);
  return (above - below) / (2 * step);
}

void compare(const std::function<Tensor()>& function, const Tensor& leaf,
             const std::vector<double>& tape, std::size_t number, const CheckOptions& options) {
  const auto n = static_cast<std::size_t>(leaf.elements());
  // Odd, so that the elements are not all in one column of a table with an even number of columns.
  const std::size_t stride = options.max_elements == 0 ? 1 : (n / options.max_elements) | 1;
  const std::vector<double> kept = leaf.to_vector();
  double worst = 0;
  double largest = 1;
  std::string where;
  for (std::size_t i = 0; i < n; i += stride) {
    const double numeric = central_difference(function, leaf, i, kept[i], options.step);
    largest = std::max(largest, std::abs(numeric));
    const double error = std::abs(tape[i] - numeric);
    if (!(error <= worst)) {  // also when it is NaN
      worst = error;
      where = fmt::format("element {}: tape {}, difference {}", i, tape[i], numeric);
    }
  }
  EXPECT_LE(worst, options.tolerance * largest)
      << "leaf " << number << " of shape " << leaf.shape().to_string() << ", " << where;
}

}  // namespace

Tensor values(const Shape& shape, unsigned seed, double low, double high) {
  std::vector<double> numbers(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = low + (high - low) * spread(i, seed);
  return Tensor::from(numbers, shape).to(default_device());
}

Tensor leaf(const Shape& shape, unsigned seed, double low, double high) {
  return values(shape, seed, low, high).set_requires_grad(true);
}

Tensor weighted_sum(const Tensor& x, unsigned seed) {
  return sum(multiply(x, values(x.shape(), seed, 0.25, 1.75)));
}

void check_gradients(const std::function<Tensor()>& function, const std::vector<Tensor>& leaves,
                     const CheckOptions& options) {
  const OneThread one_thread;
  for (Tensor leaf : leaves) leaf.zero_grad();
  const Tensor result = function();
  ASSERT_EQ(result.elements(), 1);
  for (const Op op : autograd::recorded_ops(result)) reached().insert(op);
  result.backward();
  std::vector<std::vector<double>> first;
  for (const Tensor& leaf : leaves) {
    ASSERT_TRUE(leaf.grad().defined()) << "a leaf of shape " << leaf.shape().to_string();
    ASSERT_EQ(leaf.grad().shape(), leaf.shape());
    ASSERT_EQ(leaf.grad().dtype(), leaf.dtype());
    first.push_back(leaf.grad().to_vector());
  }
  for (std::size_t i = 0; i < leaves.size(); ++i)
    compare(function, leaves[i], first[i], i, options);

  function().backward();  // adds to the existing gradients
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const std::vector<double> second = leaves[i].grad().to_vector();
    for (std::size_t k = 0; k < second.size(); ++k) {
      ASSERT_NEAR(second[k], 2 * first[i][k], 1e-12 * std::max(1.0, std::abs(second[k])))
          << "accumulation into leaf " << i << ", element " << k;
    }
  }
}

const std::set<Op>& checked_ops() {
  return reached();
}

}  // namespace tessera::testing

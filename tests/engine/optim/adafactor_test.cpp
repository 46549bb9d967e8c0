// Adafactor compared with its formula in plain fp64.
#include "engine/optim/adafactor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

struct AdafactorCase {
  explicit AdafactorCase(DType dtype = float32, double scale = 1) : size(scale) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      Tensor tensor = Tensor::empty(shapes[i], dtype).set_requires_grad(true);
      tensor.copy_from(testing::values(shapes[i], static_cast<unsigned>(i) + 1));
      parameters.push_back({names[i], tensor, shapes[i]});
    }
  }
  [[nodiscard]] Numbers gradient(std::size_t index, int step) const {
    Numbers all = testing::values(shapes[index], static_cast<unsigned>(100 + 10 * step) +
                                                     static_cast<unsigned>(index))
                      .to_vector();
    for (double& one : all) one = static_cast<float>(one * size);
    return all;
  }
  void give_gradients(int step) const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Tensor given = Tensor::empty(shapes[i], parameters[i].tensor.dtype());
      given.copy_from(Tensor::from(gradient(i, step), shapes[i]));
      parameters[i].tensor.impl()->grad = given.impl();
      parameters[i].tensor.impl()->grad_ready = true;
    }
  }
  double size;
  static inline const std::vector<Shape> shapes = {{5, 7}, {3, 4, 6}, {9}, {8, 1}};
  static inline const std::vector<std::string> names = {"matrix", "stack", "bias", "column"};
  std::vector<nn::NamedParameter> parameters;
};

// The recurrence of one parameter.
struct AdafactorReference {
  optim::AdafactorOptions options;
  std::int64_t matrices, rows, columns;  // of a vector: rows is 0
  double eps1;
  Numbers row_var = {}, col_var = {}, variance = {};
  int t = 0;

  AdafactorReference(const optim::AdafactorOptions& of, const Shape& shape, DType dtype)
      : options(of), matrices(1), rows(0), columns(0) {
    eps1 = of.eps1.value_or(dtype == float64 ? 0x1p-52 : 0x1p-23);
    if (shape.dimensions() > 1) {
      rows = shape[shape.dimensions() - 2];
      columns = shape[shape.dimensions() - 1];
      matrices = shape.elements() / rows / columns;
    }
  }
  static double root_mean_square(const Numbers& x) {
    double sum = 0;
    for (const double one : x) sum += one * one;
    return std::sqrt(sum / static_cast<double>(x.size()));
  }
  static void move(Numbers& moments, const Numbers& means, double weight) {
    moments.resize(means.size());
    for (std::size_t i = 0; i < means.size(); ++i) moments[i] += weight * (means[i] - moments[i]);
  }
  Numbers factored(const Numbers& g, double weight) {
    Numbers row_means(static_cast<std::size_t>(matrices * rows));
    Numbers col_means(static_cast<std::size_t>(matrices * columns));
    const auto row_of = [&](std::int64_t i) { return static_cast<std::size_t>(i / columns); };
    const auto col_of = [&](std::int64_t i) {
      return static_cast<std::size_t>(i / (rows * columns) * columns + i % columns);
    };
    const auto n = static_cast<std::int64_t>(g.size());
    for (std::int64_t i = 0; i < n; ++i) {
      const double square = std::pow(g[static_cast<std::size_t>(i)], 2);
      row_means[row_of(i)] += square / static_cast<double>(columns);
      col_means[col_of(i)] += square / static_cast<double>(rows);
    }
    move(row_var, row_means, weight);
    move(col_var, col_means, weight);
    Numbers v(g.size());
    for (std::int64_t i = 0; i < n; ++i) {
      double mean = 0;
      const std::int64_t first = i / (rows * columns) * rows;
      for (std::int64_t r = first; r < first + rows; ++r)
        mean += row_var[static_cast<std::size_t>(r)] / static_cast<double>(rows);
      v[static_cast<std::size_t>(i)] =
          row_var[row_of(i)] * col_var[col_of(i)] / std::max(mean, eps1);
    }
    return v;
  }
  void step(Numbers& p, const Numbers& g, double decay) {
    const double weight = std::pow(++t, options.beta2_decay);
    const double rate = std::min(options.lr, 1 / std::sqrt(t));
    const double alpha = std::max(options.eps2, root_mean_square(p)) * rate;
    for (double& one : p) one -= options.lr * decay * one;
    Numbers v, u = g;
    if (rows > 0) {
      v = factored(g, weight);
    } else {
      Numbers squares;
      for (const double one : g) squares.push_back(one * one);
      move(variance, squares, weight);
      v = variance;
    }
    for (std::size_t i = 0; i < g.size(); ++i) u[i] /= std::sqrt(std::max(v[i], eps1 * eps1));
    const double clip = std::max(1.0, root_mean_square(u) / options.clip_threshold);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= alpha / clip * u[i];
  }
};

// Within `tolerance` of each number, and of `size`.
void expect_close_to(const Tensor& tensor, const Numbers& wanted, double tolerance,
                     double size = 0) {
  const Numbers numbers = tensor.to_vector();
  ASSERT_EQ(numbers.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(numbers[i], wanted[i], tolerance * (size + std::abs(wanted[i]))) << i;
}

// Matrices decay, vectors do not.
void follow(const optim::AdafactorOptions& options, DType dtype, double tolerance, double scale) {
  const AdafactorCase c(dtype, scale);
  optim::Adafactor optimizer(c.parameters, options);
  std::vector<AdafactorReference> references;
  std::vector<Numbers> wanted;
  for (std::size_t i = 0; i < c.parameters.size(); ++i) {
    references.emplace_back(options, AdafactorCase::shapes[i], dtype);
    wanted.push_back(c.parameters[i].tensor.to_vector());
  }
  for (int step = 1; step <= 6; ++step) {
    c.give_gradients(step);
    optimizer.step();
    for (std::size_t i = 0; i < references.size(); ++i) {
      AdafactorReference& one = references[i];
      const bool decays = !options.decay || optim::decay_matrices(c.parameters[i]);
      one.step(wanted[i], c.gradient(i, step), decays ? options.weight_decay : 0);
      expect_close_to(c.parameters[i].tensor, wanted[i], tolerance, 0.1);
      if (one.rows == 0) {
        expect_close_to(optimizer.state(i, "variance"), one.variance, tolerance);
      } else {
        expect_close_to(optimizer.state(i, "row_var"), one.row_var, tolerance);
        expect_close_to(optimizer.state(i, "col_var"), one.col_var, tolerance);
      }
    }
  }
}

TEST(Adafactor, FollowsItsFormula) {
  const optim::AdafactorOptions decays{
      .lr = 0.05, .weight_decay = 0.2, .decay = optim::decay_matrices};
  const optim::AdafactorOptions other{.lr = 0.6,  // above 1 / sqrt(t) from step 3 on
                                      .beta2_decay = -0.5,
                                      .eps1 = 0.3,
                                      .eps2 = 2.0,
                                      .clip_threshold = 1.1};
  for (const optim::AdafactorOptions& options : {optim::AdafactorOptions{}, decays, other}) {
    for (const double scale : {1.0, 1e-5, 3e4}) {
      follow(options, float64, 1e-12, scale);
      follow(options, float32, 1e-5, scale);
    }
  }
}

TEST(Adafactor, HasTheShapesOfTorch) {
  const AdafactorCase c;
  optim::Adafactor optimizer(c.parameters, {});
  c.give_gradients(1);
  optimizer.step();
  EXPECT_EQ(optimizer.state_names_of(0), (std::vector<std::string>{"row_var", "col_var"}));
  EXPECT_EQ(optimizer.state_names_of(2), std::vector<std::string>{"variance"});
  EXPECT_EQ(optimizer.state(0, "row_var").shape(), (Shape{5, 1}));
  EXPECT_EQ(optimizer.state(0, "col_var").shape(), (Shape{1, 7}));
  EXPECT_EQ(optimizer.state(1, "row_var").shape(), (Shape{3, 4, 1}));
  EXPECT_EQ(optimizer.state(1, "col_var").shape(), (Shape{3, 1, 6}));
  EXPECT_EQ(optimizer.state(2, "variance").shape(), (Shape{9}));
  // 5 + 7, 3 * (4 + 6), 9 and 8 + 1 numbers.
  EXPECT_EQ(optimizer.state_bytes(), 4u * (12 + 30 + 9 + 9));
}

// Other groups' rates and decays, and parameters without a gradient.
TEST(Adafactor, HasGroupsAndSkipsWhatHasNoGradient) {
  const AdafactorCase c, plain;
  optim::AdafactorOptions options{.lr = 0.1};
  options.groups = {{.pattern = "stack", .lr_scale = 0.5, .weight_decay = 0.5}};
  optim::Adafactor optimizer(c.parameters, options);
  AdafactorReference reference({.lr = 0.05}, AdafactorCase::shapes[1], float32);
  Numbers wanted = c.parameters[1].tensor.to_vector();
  const Numbers matrix = c.parameters[0].tensor.to_vector();
  for (int step = 1; step <= 2; ++step) {
    c.give_gradients(step);
    c.parameters[0].tensor.impl()->grad_ready = false;
    optimizer.step();
    reference.step(wanted, c.gradient(1, step), 0.5);
  }
  expect_close_to(c.parameters[1].tensor, wanted, 1e-5, 0.1);
  EXPECT_EQ(c.parameters[0].tensor.to_vector(), matrix);
  EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>{0, 2, 2, 2}));
}

// A NaN makes its matrix NaN, and a zero gradient moves nothing.
TEST(Adafactor, NaNAndZeroGradients) {
  const AdafactorCase c;
  optim::Adafactor optimizer(c.parameters, {});
  c.give_gradients(1);
  Numbers bad = c.gradient(0, 1);
  bad[3] = std::nan("");
  Tensor(c.parameters[0].tensor.grad()).copy_from(Tensor::from(bad, AdafactorCase::shapes[0]));
  Tensor(c.parameters[1].tensor.grad())
      .copy_from(Tensor::from(Numbers(72), AdafactorCase::shapes[1]));
  const Numbers before = c.parameters[1].tensor.to_vector();
  optimizer.step();
  for (const double value : c.parameters[0].tensor.to_vector()) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(c.parameters[1].tensor.to_vector(), before);
}

TEST(Adafactor, RefusesMisuse) {
  const AdafactorCase c;
  using Options = optim::AdafactorOptions;
  for (const Options& options :
       {Options{.lr = -1}, Options{.beta2_decay = 0.1}, Options{.eps1 = 0}, Options{.eps2 = -1},
        Options{.clip_threshold = 0.9}, Options{.weight_decay = -1}}) {
    EXPECT_THROW(optim::Adafactor(c.parameters, options), std::logic_error);
  }
  optim::Adafactor optimizer(c.parameters, {});
  c.give_gradients(1);
  (void)optimizer.begin_step(0);
  const auto memory = optimizer.memory_of(0, {0, 1});
  EXPECT_THROW(optimizer.update_range(0, {0, 1}, memory), std::logic_error);
}

}  // namespace
}  // namespace tessera

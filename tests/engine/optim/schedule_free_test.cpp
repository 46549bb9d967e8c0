// Schedule-free AdamW compared with its authors' recurrence in plain fp64, and its evaluation.
#include "engine/optim/schedule_free.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "support/gradient_check.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

// The form of the authors' package, which keeps y and z and computes x from them.
struct ScheduleFreeReference {
  double beta1, beta2, eps, weight_decay;
  Numbers y, z, v;
  double lr_max = 0, weight_sum = 0;
  int steps = 0;

  void step(const Numbers& gradient, double lr) {
    if (steps++ == 0) {
      z = y;
      v.resize(y.size());
    }
    lr_max = std::max(lr_max, lr);
    weight_sum += lr_max * lr_max;
    const double c = weight_sum > 0 ? lr_max * lr_max / weight_sum : 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      v[i] = beta2 * v[i] + (1 - beta2) * gradient[i] * gradient[i];
      const double root = std::sqrt(v[i] / (1 - std::pow(beta2, steps))) + eps;
      const double direction = gradient[i] / root + weight_decay * y[i];
      y[i] += c * (z[i] - y[i]) + lr * (beta1 * (1 - c) - 1) * direction;
      z[i] -= lr * direction;
    }
  }
  [[nodiscard]] Numbers average() const {
    Numbers x = y;
    if (steps == 0) return x;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += (1 - 1 / beta1) * (z[i] - x[i]);
    return x;
  }
};

// A matrix p and a vector b.
struct AveragedCase {
  explicit AveragedCase(DType dtype) {
    for (const Shape& shape : {Shape{5, 7}, Shape{9}}) {
      const unsigned seed = static_cast<unsigned>(parameters.size()) + 1;
      Tensor tensor = Tensor::empty(shape, dtype).set_requires_grad(true);
      tensor.copy_from(testing::values(shape, seed));
      parameters.push_back({seed == 1 ? "p" : "b", tensor, shape});
    }
  }
  [[nodiscard]] Tensor& tensor(std::size_t index) { return parameters[index].tensor; }
  [[nodiscard]] Numbers values(std::size_t index) const {
    return parameters[index].tensor.to_vector();
  }
  Numbers give_gradient(std::size_t index, int step) {
    const Shape& shape = parameters[index].shape;
    const auto seed = static_cast<unsigned>(100 + 10 * step) + static_cast<unsigned>(index);
    Tensor gradient = Tensor::empty(shape, tensor(index).dtype());
    gradient.copy_from(testing::values(shape, seed));
    tensor(index).impl()->grad = gradient.impl();
    tensor(index).impl()->grad_ready = true;
    return testing::values(shape, seed).to_vector();
  }
  std::vector<nn::NamedParameter> parameters;
};

void expect_close(const Numbers& numbers, const Numbers& wanted, double tolerance) {
  ASSERT_EQ(numbers.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(numbers[i], wanted[i], tolerance);
}

// With a warmup, a rate that falls later, groups, and steps in which b has no gradient.
TEST(ScheduleFreeAdamW, FollowsItsAuthorsRecurrence) {
  for (const DType dtype : {float32, float64}) {
    const double tolerance = dtype == float64 ? 1e-12 : 5e-6;
    AveragedCase c(dtype);
    optim::ScheduleFreeAdamW optimizer(c.parameters,
                                       {.lr = 0.02,
                                        .beta1 = 0.8,
                                        .beta2 = 0.95,
                                        .eps = 1e-6,
                                        .weight_decay = 0.1,
                                        .decay = optim::decay_matrices,
                                        .groups = {{.pattern = "b", .lr_scale = 0.5}}});
    std::vector<ScheduleFreeReference> references = {{0.8, 0.95, 1e-6, 0.1, c.values(0), {}, {}},
                                                     {0.8, 0.95, 1e-6, 0.0, c.values(1), {}, {}}};
    for (int step = 1; step <= 8; ++step) {
      const double lr = step < 4 ? 0.02 * step / 4 : step < 7 ? 0.02 : 0.01;
      optimizer.set_learning_rate(lr);
      references[0].step(c.give_gradient(0, step), lr);
      const bool skips = step == 1 || step == 5;
      if (skips) {
        c.tensor(1).zero_grad();
      } else {
        references[1].step(c.give_gradient(1, step), 0.5 * lr);
      }
      optimizer.step();
      for (std::size_t i = 0; i < 2; ++i) expect_close(c.values(i), references[i].y, tolerance);
      const std::vector<Numbers> trained = {c.values(0), c.values(1)};
      optimizer.begin_evaluation();
      for (std::size_t i = 0; i < 2; ++i) {
        expect_close(c.values(i), references[i].average(), tolerance);
        EXPECT_EQ(optimizer.weights(i).to_vector(), c.values(i));
      }
      optimizer.end_evaluation();
      for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(c.values(i), trained[i]);  // to the bit
    }
    EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>{8, 6}));
    EXPECT_EQ(optimizer.state_bytes(), 3 * (35 + 9) * size_of(dtype));
    EXPECT_DOUBLE_EQ(optimizer.numbers()[0][0], 0.02);
    EXPECT_NEAR(optimizer.numbers()[1][1], references[1].weight_sum, 1e-15);
  }
}

// Steps of rate 0 do not count in the average, and divide nothing by 0.
TEST(ScheduleFreeAdamW, MayBeginWithARateOfZero) {
  AveragedCase c(float64);
  optim::ScheduleFreeAdamW optimizer(c.parameters, {.lr = 0});
  const Numbers before = c.values(0);
  for (std::size_t i = 0; i < 2; ++i) c.give_gradient(i, 1);
  optimizer.step();
  EXPECT_EQ(c.values(0), before);
  optimizer.set_learning_rate(0.1);
  ScheduleFreeReference reference{0.9, 0.999, 1e-8, 0, before, {}, {}};
  reference.step(c.give_gradient(0, 1), 0);
  reference.step(c.give_gradient(0, 2), 0.1);
  optimizer.step();
  expect_close(c.values(0), reference.y, 1e-12);
}

TEST(ScheduleFreeAdamW, WeighsStepsByTheirNumberAndRate) {
  AveragedCase c(float64);
  optim::ScheduleFreeAdamW optimizer(c.parameters, {.lr = 0.1, .r = 1, .weight_lr_power = 0});
  for (int step = 1; step <= 3; ++step) {
    c.give_gradient(0, step);
    optimizer.step();
  }
  EXPECT_DOUBLE_EQ(optimizer.numbers()[0][1], 1 + 2 + 3);
}

TEST(ScheduleFreeAdamW, RefusesStepsInAnEvaluation) {
  AveragedCase c(float32);
  optim::ScheduleFreeAdamW optimizer(c.parameters, {});
  EXPECT_THROW(optimizer.end_evaluation(), std::logic_error);
  optimizer.begin_evaluation();  // also before the first step
  EXPECT_THROW(optimizer.begin_evaluation(), std::logic_error);
  c.give_gradient(0, 1);
  EXPECT_THROW(optimizer.step(), std::logic_error);
  EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>{0, 0}));
  optimizer.end_evaluation();
  optimizer.step();
  EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>{1, 0}));
}

TEST(ScheduleFreeAdamW, RefusesOptionsThatItCannotHave) {
  const AveragedCase c(float32);
  EXPECT_THROW(optim::ScheduleFreeAdamW(c.parameters, {.beta1 = 1.0}), std::logic_error);
  EXPECT_THROW(optim::ScheduleFreeAdamW(c.parameters, {.r = -1}), std::logic_error);
  EXPECT_THROW(optim::ScheduleFreeAdamW(c.parameters, {.weight_lr_power = -1}), std::logic_error);
}

// The calls are the same for every optimizer.
TEST(Optimizer, EvaluatesItsParametersWithoutAverages) {
  AveragedCase c(float32);
  optim::AdamW optimizer(c.parameters, {});
  c.give_gradient(0, 1);
  optimizer.step();
  const Numbers trained = c.values(0);
  optimizer.begin_evaluation();
  EXPECT_EQ(c.values(0), trained);
  EXPECT_EQ(optimizer.weights(0).to_vector(), trained);
  EXPECT_THROW(optimizer.step(), std::logic_error);
  optimizer.end_evaluation();
  EXPECT_EQ(c.values(0), trained);
}

}  // namespace
}  // namespace tessera

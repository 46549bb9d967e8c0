// Optimizers against their formulas in plain fp64, and learning-rate schedules.
#include "engine/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/optim/schedule.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

// Parameters p (a matrix) and b (a vector), with the gradients that step `step` brings.
struct Case {
  explicit Case(DType dtype) {
    for (const Shape& shape : {Shape{5, 7}, Shape{9}}) {
      const unsigned seed = static_cast<unsigned>(parameters.size()) + 1;
      Tensor tensor = Tensor::empty(shape, dtype).set_requires_grad(true);
      tensor.copy_from(testing::values(shape, seed));
      parameters.push_back({seed == 1 ? "p" : "b", tensor, shape});
    }
  }
  static Numbers gradient(std::size_t index, int step) {
    const Shape shape = index == 0 ? Shape{5, 7} : Shape{9};
    return testing::values(shape,
                           static_cast<unsigned>(100 + 10 * step) + static_cast<unsigned>(index))
        .to_vector();
  }
  void give_gradients(int step) const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Tensor gradient = Tensor::empty(parameters[i].shape, parameters[i].tensor.dtype());
      gradient.copy_from(Case::tensor_of(Case::gradient(i, step), parameters[i].shape));
      parameters[i].tensor.impl()->grad = gradient.impl();
      parameters[i].tensor.impl()->grad_ready = true;
    }
  }
  static Tensor tensor_of(const Numbers& numbers, const Shape& shape) {
    return Tensor::from(numbers, shape);
  }
  std::vector<nn::NamedParameter> parameters;
};

void expect_near(const Tensor& tensor, const Numbers& wanted) {
  const Numbers numbers = tensor.to_vector();
  const double tolerance = tensor.dtype() == float64 ? 1e-12 : 3e-6;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(numbers[i], wanted[i], tolerance) << i;
}

struct AdamReference {
  double lr, beta1, beta2, eps, weight_decay;
  Numbers m, v;
  void step(Numbers& p, const Numbers& gradient, int step) {
    m.resize(p.size());
    v.resize(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = gradient[i];
      p[i] *= 1 - lr * weight_decay;
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(beta1, step));
      const double v_hat = v[i] / (1 - std::pow(beta2, step));
      p[i] -= lr * m_hat / (std::sqrt(v_hat) + eps);
    }
  }
};

TEST(AdamW, FollowsItsFormula) {
  for (const DType dtype : {float32, float64}) {
    const Case c(dtype);
    optim::AdamW optimizer(c.parameters, {.lr = 0.02,
                                          .beta1 = 0.8,
                                          .beta2 = 0.95,
                                          .eps = 1e-6,
                                          .weight_decay = 0.1,
                                          .decay = optim::decay_matrices});
    std::vector<AdamReference> references = {{0.02, 0.8, 0.95, 1e-6, 0.1, {}, {}},
                                             {0.02, 0.8, 0.95, 1e-6, 0.0, {}, {}}};
    std::vector<Numbers> wanted;
    for (const auto& parameter : c.parameters) wanted.push_back(parameter.tensor.to_vector());
    for (int step = 1; step <= 5; ++step) {
      c.give_gradients(step);
      optimizer.step();
      for (std::size_t i = 0; i < 2; ++i) {
        references[i].step(wanted[i], Case::gradient(i, step), step);
        expect_near(c.parameters[i].tensor, wanted[i]);
        expect_near(optimizer.state(i, "exp_avg"), references[i].m);
        expect_near(optimizer.state(i, "exp_avg_sq"), references[i].v);
      }
    }
    EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>{5, 5}));
    EXPECT_EQ(optimizer.state_bytes(), 2 * (35 + 9) * size_of(dtype));
  }
}

TEST(Sgd, FollowsItsFormula) {
  for (const DType dtype : {float32, float64}) {
    for (const bool nesterov : {false, true}) {
      const double dampening = nesterov ? 0.0 : 0.25;
      const Case c(dtype);
      optim::Sgd optimizer(c.parameters, {.lr = 0.05,
                                          .momentum = 0.9,
                                          .dampening = dampening,
                                          .weight_decay = 0.1,
                                          .nesterov = nesterov});
      Numbers p = c.parameters[0].tensor.to_vector();
      Numbers buffer;
      for (int step = 1; step <= 4; ++step) {
        c.give_gradients(step);
        optimizer.step();
        const Numbers gradient = Case::gradient(0, step);
        buffer.resize(p.size());
        for (std::size_t i = 0; i < p.size(); ++i) {
          const double g = gradient[i] + 0.1 * p[i];
          buffer[i] = step == 1 ? g : 0.9 * buffer[i] + (1 - dampening) * g;
          p[i] -= 0.05 * (nesterov ? g + 0.9 * buffer[i] : buffer[i]);
        }
        expect_near(c.parameters[0].tensor, p);
      }
    }
  }
}

TEST(Sgd, WithoutMomentumHasNoState) {
  const Case c(float32);
  optim::Sgd optimizer(c.parameters, {.lr = 0.5});
  Numbers wanted = c.parameters[1].tensor.to_vector();
  c.give_gradients(1);
  optimizer.step();
  const Numbers gradient = Case::gradient(1, 1);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] -= 0.5 * gradient[i];
  expect_near(c.parameters[1].tensor, wanted);
  EXPECT_TRUE(optimizer.state_names().empty());
  EXPECT_EQ(optimizer.state_bytes(), 0u);
}

TEST(Optimizer, MultipliesInTheFactorThatClippingLeft) {
  const Case scaled(float64);
  const Case plain(float64);
  optim::AdamW one(scaled.parameters, {.lr = 0.1});
  optim::AdamW other(plain.parameters, {.lr = 0.1});
  scaled.give_gradients(1);
  plain.give_gradients(1);
  for (const auto& parameter : scaled.parameters) parameter.tensor.impl()->grad_scale = 0.25f;
  for (const auto& parameter : plain.parameters) {
    double* gradient = parameter.tensor.grad().data_as<double>();
    for (std::int64_t i = 0; i < parameter.tensor.elements(); ++i) gradient[i] *= 0.25;
  }
  one.step();
  other.step();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(scaled.parameters[i].tensor.to_vector(), plain.parameters[i].tensor.to_vector());
  }
}

TEST(Optimizer, LeavesParametersWithoutGradientAlone) {
  const Case c(float32);
  optim::AdamW optimizer(c.parameters, {.lr = 0.1});
  c.give_gradients(1);
  Tensor(c.parameters[1].tensor).zero_grad();
  const Numbers before = c.parameters[1].tensor.to_vector();
  optimizer.step();
  EXPECT_EQ(c.parameters[1].tensor.to_vector(), before);
  EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>{1, 0}));
  optimizer.zero_grad();
  EXPECT_FALSE(c.parameters[0].tensor.grad().defined());
}

TEST(Optimizer, RefusesWhatItCannotUpdate) {
  EXPECT_THROW(optim::AdamW({}, {}), std::logic_error);
  const Case half(bfloat16);
  EXPECT_THROW(optim::AdamW(half.parameters, {}), std::logic_error);
  const Case c(float32);
  EXPECT_THROW(optim::AdamW(c.parameters, {.beta1 = 1.0}), std::logic_error);
  EXPECT_THROW(optim::Sgd(c.parameters, {.nesterov = true}), std::logic_error);
  optim::AdamW optimizer(c.parameters, {});
  EXPECT_THROW(optimizer.set_step_counts({1}), std::logic_error);
}

TEST(Schedule, WarmsUpAndDecays) {
  using optim::Schedule;
  using optim::ScheduleKind;
  const Schedule constant{.kind = ScheduleKind::constant, .peak = 2, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(constant.at(0), 0.5);
  EXPECT_DOUBLE_EQ(constant.at(3), 2);
  EXPECT_DOUBLE_EQ(constant.at(1000), 2);
  const Schedule linear{.kind = ScheduleKind::linear,
                        .peak = 1,
                        .minimum = 0.2,
                        .warmup_steps = 10,
                        .decay_steps = 110};
  EXPECT_DOUBLE_EQ(linear.at(10), 1);
  EXPECT_DOUBLE_EQ(linear.at(60), 0.6);
  EXPECT_DOUBLE_EQ(linear.at(110), 0.2);
  EXPECT_DOUBLE_EQ(linear.at(500), 0.2);
  const Schedule cosine{.kind = ScheduleKind::cosine,
                        .peak = 1,
                        .minimum = 0.5,
                        .warmup_steps = 0,
                        .decay_steps = 100};
  EXPECT_DOUBLE_EQ(cosine.at(0), 1);
  EXPECT_DOUBLE_EQ(cosine.at(50), 0.75);
  EXPECT_NEAR(cosine.at(25), 0.5 + 0.25 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_DOUBLE_EQ(cosine.at(100), 0.5);
}

}  // namespace
}  // namespace tessera

// Optimizers compared with their formulas in plain fp64.
#include "engine/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

// Parameters p (a matrix) and b (a vector), with the gradients of step `step`.
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

TEST(AdamW, GroupsHaveARateAndADecayOfTheirOwn) {
  const Case c(float64);
  optim::AdamW optimizer(c.parameters, {.lr = 0.02,
                                        .beta1 = 0.8,
                                        .beta2 = 0.95,
                                        .eps = 1e-6,
                                        .weight_decay = 0.1,
                                        .decay = optim::decay_matrices,
                                        .groups = {{.pattern = "b", .weight_decay = 0.3},
                                                   {.pattern = "[bp]", .lr_scale = 0.5}}});
  std::vector<AdamReference> references = {{0.01, 0.8, 0.95, 1e-6, 0.1, {}, {}},
                                           {0.02, 0.8, 0.95, 1e-6, 0.3, {}, {}}};
  std::vector<Numbers> wanted;
  for (const auto& parameter : c.parameters) wanted.push_back(parameter.tensor.to_vector());
  for (int step = 1; step <= 3; ++step) {
    c.give_gradients(step);
    optimizer.step();
    for (std::size_t i = 0; i < 2; ++i) {
      references[i].step(wanted[i], Case::gradient(i, step), step);
      expect_near(c.parameters[i].tensor, wanted[i]);
    }
  }
}

TEST(Optimizer, RefusesAParameterTwice) {
  const Case c(float32);
  std::vector<nn::NamedParameter> twice = c.parameters;
  twice.push_back(c.parameters[0]);
  EXPECT_THROW(optim::Sgd(twice, {}), std::logic_error);
}

TEST(Optimizer, RefusesAStepWithARateThatIsNoNumber) {
  Case c(float32);
  optim::Sgd optimizer(c.parameters, {.lr = 0.1});
  c.give_gradients(1);
  const Numbers before = c.parameters[0].tensor.to_vector();
  for (const double rate : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    optimizer.set_learning_rate(rate);
    EXPECT_THROW(optimizer.step(), std::logic_error);
  }
  EXPECT_EQ(c.parameters[0].tensor.to_vector(), before);
}

TEST(Optimizer, RefusesAnEmptyGroup) {
  const Case c(float32);
  for (const char* pattern : {"q", "p.*x", "("}) {
    EXPECT_THROW(optim::Sgd(c.parameters, {.groups = {{.pattern = pattern}}}), Error) << pattern;
  }
  Tensor matrix = c.parameters[0].tensor;
  matrix.set_requires_grad(false);
  EXPECT_THROW(optim::Sgd(c.parameters, {.groups = {{.pattern = "p"}}}), Error);
}

TEST(Lion, FollowsItsFormula) {
  for (const DType dtype : {float32, float64}) {
    const Case c(dtype);
    optim::Lion optimizer(c.parameters, {.lr = 0.02,
                                         .beta1 = 0.8,
                                         .beta2 = 0.95,
                                         .weight_decay = 0.1,
                                         .decay = optim::decay_matrices});
    std::vector<Numbers> wanted, means = {Numbers(35), Numbers(9)};
    for (const auto& parameter : c.parameters) wanted.push_back(parameter.tensor.to_vector());
    for (int step = 1; step <= 5; ++step) {
      c.give_gradients(step);
      optimizer.step();
      for (std::size_t i = 0; i < 2; ++i) {
        const Numbers gradient = Case::gradient(i, step);
        for (std::size_t e = 0; e < gradient.size(); ++e) {
          const double direction = 0.8 * means[i][e] + 0.2 * gradient[e];
          wanted[i][e] *= i == 0 ? 1 - 0.02 * 0.1 : 1.0;
          wanted[i][e] -= 0.02 * (direction > 0 ? 1 : -1);
          means[i][e] = 0.95 * means[i][e] + 0.05 * gradient[e];
        }
        expect_near(c.parameters[i].tensor, wanted[i]);
        expect_near(optimizer.state(i, "exp_avg"), means[i]);
      }
    }
    EXPECT_EQ(optimizer.state_bytes(), (35 + 9) * size_of(dtype));
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

TEST(Optimizer, AppliesTheFactorThatClippingLeft) {
  const Case scaled(float64);
  const Case plain(float64);
  optim::AdamW one(scaled.parameters, {.lr = 0.1});
  optim::AdamW other(plain.parameters, {.lr = 0.1});
  scaled.give_gradients(1);
  plain.give_gradients(1);
  for (const auto& parameter : scaled.parameters)
    parameter.tensor.impl()->grad->storage->edit_shard().pending_factor = 0.25f;
  for (const auto& parameter : plain.parameters) {
    Tensor gradient = parameter.tensor.grad();
    auto* const values = gradient.data_as<double>();
    for (std::int64_t i = 0; i < gradient.elements(); ++i) values[i] *= 0.25;
  }
  one.step();
  other.step();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(scaled.parameters[i].tensor.to_vector(), plain.parameters[i].tensor.to_vector());
  }
}

// Parameters in one storage, as in a shard: each at a multiple of 32 elements.
struct PackedCase {
  explicit PackedCase(const std::vector<Shape>& shapes) {
    std::int64_t elements = 0;
    for (const Shape& shape : shapes) elements = (elements + 31) / 32 * 32 + shape.elements();
    memory = Tensor::zeros({elements}, float32);
    gradients = Tensor::zeros({elements}, float32);
    memory.storage()->edit_shard().padded_to = 32;
    std::int64_t at = 0;
    for (const Shape& shape : shapes) {
      at = (at + 31) / 32 * 32;
      const auto seed = static_cast<unsigned>(parameters.size());
      const auto place = static_cast<std::size_t>(at) * sizeof(float);
      Tensor tensor = Tensor::view_of(memory.storage(), place, shape, float32);
      Tensor gradient = Tensor::view_of(gradients.storage(), place, shape, float32);
      tensor.copy_from(testing::values(shape, seed + 1));
      gradient.copy_from(testing::values(shape, seed + 50));
      tensor.set_requires_grad(true).impl()->grad = gradient.impl();
      tensor.impl()->grad_ready = true;
      parameters.push_back({"p" + std::to_string(seed), tensor, shape});
      at += shape.elements();
    }
  }
  // The same values, with each parameter in its own memory.
  [[nodiscard]] std::vector<nn::NamedParameter> apart() const {
    std::vector<nn::NamedParameter> copies;
    for (const auto& [name, tensor, shape] : parameters) {
      Tensor copy = tensor.clone().set_requires_grad(true);
      copy.impl()->grad = Tensor(tensor.impl()->grad).clone().impl();
      copy.impl()->grad_ready = tensor.impl()->grad_ready;
      copies.push_back({name, copy, shape});
    }
    return copies;
  }
  Tensor memory, gradients;
  std::vector<nn::NamedParameter> parameters;
};

const std::vector<Shape> packed_shapes = {{5, 7}, {9}, {0}, {3, 40}, {64}, {1}, {2, 2}};

// Records the element counts of its kernel calls.
class CountingAdamW : public optim::AdamW {
 public:
  using AdamW::AdamW;
  std::vector<std::int64_t> counts;

 private:
  void update(const optim::Update& u) override {
    counts.push_back(u.count);
    AdamW::update(u);
  }
};

void expect_same_values(const std::vector<nn::NamedParameter>& a,
                        const std::vector<nn::NamedParameter>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_EQ(a[i].tensor.to_vector(), b[i].tensor.to_vector()) << i;
}

TEST(Optimizer, UpdatesNeighboursInOneCall) {
  const optim::AdamWOptions options{.lr = 0.1, .decay = optim::decay_matrices};
  const PackedCase packed(packed_shapes);
  const auto apart = packed.apart();
  CountingAdamW together(packed.parameters, options);
  CountingAdamW alone(apart, options);
  ASSERT_EQ(together.segments().size(), 1u);
  for (int step = 0; step < 3; ++step) {
    together.step();
    alone.step();
  }
  EXPECT_EQ(together.counts.size(), 3u);
  EXPECT_EQ(alone.counts.size(), 3 * (packed_shapes.size() - 1));  // none for the empty ones
  expect_same_values(packed.parameters, apart);
  for (std::size_t i = 0; i < apart.size(); ++i) {
    EXPECT_EQ(together.state(i, "exp_avg_sq").to_vector(),
              alone.state(i, "exp_avg_sq").to_vector());
  }
  EXPECT_EQ(together.step_counts(), alone.step_counts());
}

// Other step counts, parameters without a gradient, an optimizer of some of the parameters only.
TEST(Optimizer, SplitsParametersThatAreUpdatedDifferently) {
  const optim::AdamWOptions options{.lr = 0.1, .decay = optim::decay_matrices};
  const PackedCase packed(packed_shapes);
  packed.parameters[3].tensor.impl()->grad_ready = false;
  const auto apart = packed.apart();
  CountingAdamW together(packed.parameters, options);
  CountingAdamW alone(apart, options);
  for (optim::Optimizer* optimizer :
       {static_cast<optim::Optimizer*>(&together), static_cast<optim::Optimizer*>(&alone)}) {
    optimizer->set_step_counts({4, 4, 0, 4, 4, 7, 7});
    optimizer->step();
  }
  // The first two, one after the gap, and two with another count.
  EXPECT_EQ(together.counts, (std::vector<std::int64_t>{73, 64, 36}));
  expect_same_values(packed.parameters, apart);
  EXPECT_EQ(together.step_counts(), (std::vector<std::int64_t>{5, 5, 1, 4, 5, 8, 8}));

  const PackedCase other(packed_shapes);
  const Numbers before = other.parameters[1].tensor.to_vector();
  CountingAdamW some({other.parameters[0], other.parameters[3], other.parameters[4]}, options);
  some.step();
  EXPECT_EQ(some.counts, (std::vector<std::int64_t>{192, 35}));  // in the order of a backward
  EXPECT_EQ(other.parameters[1].tensor.to_vector(), before);
  EXPECT_EQ(some.state_bytes(), 2 * 4 * (35u + 192));
}

// Piece by piece, in any order, in other memory: the result equals that of a step at once.
TEST(Optimizer, UpdatesRangesInOtherMemory) {
  const optim::AdamWOptions options{.lr = 0.1, .decay = optim::decay_matrices};
  const PackedCase whole(packed_shapes);
  const PackedCase pieces(packed_shapes);
  optim::AdamW at_once(whole.parameters, options);
  optim::AdamW by_range(pieces.parameters, options);
  int writes = 0;
  pieces.memory.storage()->set_observer({.on_write = [&](Storage::Write) { ++writes; }});
  for (int step = 0; step < 2; ++step) {
    whole.gradients.storage()->edit_shard().pending_factor = 0.5f;
    pieces.gradients.storage()->edit_shard().pending_factor = 0.5f;
    at_once.step();
    ASSERT_TRUE(by_range.begin_step(0));
    const std::int64_t count = by_range.segments()[0].count;
    for (const auto& [first, last] :
         {std::pair<std::int64_t, std::int64_t>{200, count}, {0, 33}, {100, 200}, {33, 100}}) {
      const ElementRange range{first, last - first};
      const optim::Optimizer::Memory own = by_range.memory_of(0, range);
      std::vector<std::vector<std::byte>> copies;
      const auto bytes = static_cast<std::size_t>(range.count) * sizeof(float);
      const auto copy = [&](const std::byte* from) {
        return copies.emplace_back(from, from + bytes).data();
      };
      optim::Optimizer::Memory window{own.device, copy(own.parameter), copy(own.gradient), {}};
      for (std::byte* state : own.states) window.states.push_back(copy(state));
      by_range.update_range(0, range, window);
      std::copy_n(window.parameter, bytes, own.parameter);
      for (std::size_t i = 0; i < own.states.size(); ++i)
        std::copy_n(window.states[i], bytes, own.states[i]);
    }
  }
  EXPECT_EQ(writes, 2);
  EXPECT_EQ(pieces.memory.to_vector(), whole.memory.to_vector());
  EXPECT_EQ(by_range.segment_state(0, 0).to_vector(), at_once.segment_state(0, 0).to_vector());
  EXPECT_EQ(by_range.step_counts(), at_once.step_counts());
}

TEST(Optimizer, DoesNotChangeParametersWithoutGradient) {
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

TEST(Optimizer, RefusesParametersThatItCannotUpdate) {
  EXPECT_THROW(optim::AdamW({}, {}), std::logic_error);
  const Case half(bfloat16);
  EXPECT_THROW(optim::AdamW(half.parameters, {}), std::logic_error);
  const Case c(float32);
  EXPECT_THROW(optim::AdamW(c.parameters, {.beta1 = 1.0}), std::logic_error);
  EXPECT_THROW(optim::Lion(c.parameters, {.beta2 = 1.0}), std::logic_error);
  EXPECT_THROW(optim::Sgd(c.parameters, {.nesterov = true}), std::logic_error);
  optim::AdamW optimizer(c.parameters, {});
  EXPECT_THROW(optimizer.set_step_counts({1}), std::logic_error);
}

}  // namespace
}  // namespace tessera

// Muon compared with its formula in plain fp64.
#include "engine/optim/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/nn/layers.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

// Two matrices, a table that is not to be one, and a vector.
struct Case {
  explicit Case(DType dtype = float32) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      Tensor tensor = Tensor::empty(shapes[i], dtype).set_requires_grad(true);
      tensor.copy_from(testing::values(shapes[i], static_cast<unsigned>(i) + 1));
      parameters.push_back({names[i], tensor, shapes[i]});
    }
  }
  static Numbers gradient(std::size_t index, int step) {
    return testing::values(shapes[index],
                           static_cast<unsigned>(100 + 10 * step) + static_cast<unsigned>(index))
        .to_vector();
  }
  void give_gradients(int step) const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Tensor gradient = Tensor::empty(shapes[i], parameters[i].tensor.dtype());
      gradient.copy_from(Tensor::from(Case::gradient(i, step), shapes[i]));
      parameters[i].tensor.impl()->grad = gradient.impl();
      parameters[i].tensor.impl()->grad_ready = true;
    }
  }
  static inline const std::vector<Shape> shapes = {{5, 7}, {9, 4}, {6, 5}, {9}};
  static inline const std::vector<std::string> names = {"wide", "tall", "table", "bias"};
  std::vector<nn::NamedParameter> parameters;
};

bool no_table(const nn::NamedParameter& parameter) {
  return parameter.name != "table";
}

// a [m, k] times b [k, n].
Numbers product(const Numbers& a, const Numbers& b, std::int64_t m, std::int64_t k,
                std::int64_t n) {
  Numbers c(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
      c[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

Numbers transposed(const Numbers& x, std::int64_t rows, std::int64_t columns) {
  Numbers y(x.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j)
      y[static_cast<std::size_t>(j * rows + i)] = x[static_cast<std::size_t>(i * columns + j)];
  }
  return y;
}

Numbers orthogonalised(Numbers x, std::int64_t rows, std::int64_t columns, int steps) {
  double norm = 0;
  for (const double value : x) norm += value * value;
  for (double& value : x) value /= std::max(std::sqrt(norm), 1e-7);
  for (int step = 0; step < steps; ++step) {
    const Numbers a = product(x, transposed(x, rows, columns), rows, columns, rows);
    Numbers b = product(a, a, rows, rows, rows);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
    const Numbers more = product(b, x, rows, rows, columns);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + more[i];
  }
  return x;
}

struct Reference {
  double lr, momentum, weight_decay, factor;
  bool nesterov;
  int steps;
  std::int64_t rows, columns;
  Numbers m;
  void step(Numbers& p, const Numbers& g) {
    m.resize(p.size());
    Numbers u(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = momentum * m[i] + (1 - momentum) * g[i];
      u[i] = nesterov ? momentum * m[i] + (1 - momentum) * g[i] : m[i];
    }
    const Numbers x = orthogonalised(u, rows, columns, steps);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= lr * (weight_decay * p[i] + factor * x[i]);
  }
};

void expect_near(const Tensor& tensor, const Numbers& wanted, double tolerance) {
  const Numbers numbers = tensor.to_vector();
  ASSERT_EQ(numbers.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(numbers[i], wanted[i], tolerance) << i;
}

// The matrices follow Muon's formula, within `tolerance` of a step's length.
void follow_formula(const optim::MuonOptions& options, double wide, double tall, DType dtype,
                    double tolerance) {
  const Case c(dtype);
  optim::Muon optimizer(c.parameters, options);
  std::vector<Reference> references;
  const double factors[] = {wide, tall};
  std::vector<Numbers> wanted;
  for (std::size_t i = 0; i < 2; ++i) {
    references.push_back({options.lr,
                          options.momentum,
                          options.weight_decay,
                          factors[i],
                          options.nesterov,
                          options.ns_steps,
                          Case::shapes[i][0],
                          Case::shapes[i][1],
                          {}});
    wanted.push_back(c.parameters[i].tensor.to_vector());
  }
  for (int step = 1; step <= 4; ++step) {
    c.give_gradients(step);
    optimizer.step();
    for (std::size_t i = 0; i < 2; ++i) {
      references[i].step(wanted[i], Case::gradient(i, step));
      expect_near(c.parameters[i].tensor, wanted[i], step * tolerance * options.lr * factors[i]);
      // Without momentum there is nothing to remember.
      if (options.momentum > 0) {
        expect_near(optimizer.state(i, "momentum"), references[i].m, 1e-5);
      }
    }
  }
}

TEST(Muon, FollowsItsFormula) {
  optim::MuonOptions options{
      .lr = 0.02, .momentum = 0.8, .products = float32, .weight_decay = 0.1, .matrices = no_table};
  const double tall = std::sqrt(9.0 / 4.0);
  for (const DType dtype : {float32, float64}) follow_formula(options, 1, tall, dtype, 2e-4);
  options.nesterov = false;
  options.ns_steps = 2;
  follow_formula(options, 1, tall, float32, 2e-4);
  options.adjust_lr = optim::MuonRate::match_rms_adamw;
  follow_formula(options, 0.2 * std::sqrt(7.0), 0.2 * 3, float32, 2e-4);
  options.momentum = 0;
  follow_formula(options, 0.2 * std::sqrt(7.0), 0.2 * 3, float32, 2e-4);
}

// Rounded products move singular values within the interval that they are meant to be in.
TEST(Muon, FollowsItsFormulaRoughlyInBfloat16) {
  const optim::MuonOptions options{.lr = 0.02, .momentum = 0.8, .matrices = no_table};
  follow_formula(options, 1, std::sqrt(9.0 / 4.0), float32, 0.06);
}

// After five steps the singular values are near one: x x^T is near the identity.
TEST(Muon, MakesRowsOrthogonal) {
  const Case c;
  optim::Muon optimizer(c.parameters, {.lr = 1, .weight_decay = 0, .matrices = no_table});
  const Numbers before = c.parameters[0].tensor.to_vector();
  c.give_gradients(1);
  optimizer.step();
  Numbers x = c.parameters[0].tensor.to_vector();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = before[i] - x[i];
  const Numbers square = product(x, transposed(x, 5, 7), 5, 7, 5);
  for (std::size_t i = 0; i < square.size(); ++i)
    EXPECT_NEAR(square[i], i % 6 == 0 ? 0.9 : 0.0, 0.5) << i;
}

TEST(Muon, GivesAdamWTheRest) {
  const Case c, alone;
  optim::Muon optimizer(c.parameters, {.lr = 0.02,
                                       .weight_decay = 0.1,
                                       .matrices = no_table,
                                       .adamw_lr = 0.005,
                                       .beta1 = 0.8,
                                       .beta2 = 0.95,
                                       .adamw_eps = 1e-6,
                                       .decay = optim::decay_matrices});
  optim::AdamW adamw({alone.parameters[2], alone.parameters[3]}, {.lr = 0.005,
                                                                  .beta1 = 0.8,
                                                                  .beta2 = 0.95,
                                                                  .eps = 1e-6,
                                                                  .weight_decay = 0.1,
                                                                  .decay = optim::decay_matrices});
  for (int step = 1; step <= 3; ++step) {
    optimizer.set_learning_rate(0.02 / step);  // a schedule moves both rates
    adamw.set_learning_rate(0.005 / step);
    c.give_gradients(step);
    alone.give_gradients(step);
    optimizer.step();
    adamw.step();
  }
  for (const std::size_t i : {2, 3}) {
    EXPECT_EQ(c.parameters[i].tensor.to_vector(), alone.parameters[i].tensor.to_vector());
    EXPECT_EQ(optimizer.state(i, "exp_avg").to_vector(), adamw.state(i - 2, "exp_avg").to_vector());
  }
  EXPECT_EQ(optimizer.state_names_of(0), std::vector<std::string>{"momentum"});
  EXPECT_EQ(optimizer.state_names_of(2), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(optimizer.state_bytes(), 4u * (35 + 36 + 2 * (30 + 9)));
  EXPECT_EQ(optimizer.step_counts(), std::vector<std::int64_t>(4, 3));
  EXPECT_THROW((void)optimizer.state(0, "exp_avg"), std::logic_error);
}

// Where x is zero, the weights decay alone. Groups have a rate and a decay of their own, and a
// matrix without a gradient stays.
TEST(Muon, ZeroGradientsGroupsAndNoGradient) {
  const Case c;
  optim::Muon optimizer(c.parameters, {.lr = 0.1,
                                       .weight_decay = 0.5,
                                       .groups = {{.pattern = "tall", .weight_decay = 0.0},
                                                  {.pattern = "wide", .lr_scale = 0.5}}});
  c.give_gradients(1);
  for (const std::size_t i : {0, 1}) {
    Tensor gradient(c.parameters[i].tensor.impl()->grad);
    gradient.copy_from(Tensor::zeros(gradient.shape()));
  }
  c.parameters[2].tensor.impl()->grad_ready = false;
  std::vector<Numbers> before;
  for (const auto& parameter : c.parameters) before.push_back(parameter.tensor.to_vector());
  optimizer.step();
  Numbers decayed = before[0];
  for (double& value : decayed) value *= 1 - 0.1 * 0.5 * 0.5;
  expect_near(c.parameters[0].tensor, decayed, 1e-6);
  EXPECT_EQ(c.parameters[1].tensor.to_vector(), before[1]);
  EXPECT_EQ(c.parameters[2].tensor.to_vector(), before[2]);
  EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>{1, 1, 0, 1}));
}

// One segment at a time has the bits of a whole step.
TEST(Muon, StepsBySegments) {
  const Case whole, parts;
  const optim::MuonOptions options{.lr = 0.1, .matrices = no_table};
  optim::Muon one(whole.parameters, options), other(parts.parameters, options);
  for (int step = 1; step <= 2; ++step) {
    whole.give_gradients(step);
    parts.give_gradients(step);
    one.step();
    for (std::size_t s = 0; s < other.segments().size(); ++s) other.step(s);
  }
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_EQ(whole.parameters[i].tensor.to_vector(), parts.parameters[i].tensor.to_vector());
}

TEST(Muon, RefusesWrongOptions) {
  const Case c;
  using Options = optim::MuonOptions;
  for (const Options& wrong :
       {Options{.momentum = 1}, Options{.momentum = -0.1}, Options{.ns_steps = 0},
        Options{.ns_steps = 100}, Options{.eps = 0}, Options{.products = float16},
        Options{.weight_decay = -1}, Options{.lr = 0, .adamw_lr = 1e-3}, Options{.beta2 = 1}}) {
    EXPECT_THROW(optim::Muon(c.parameters, wrong), std::logic_error);
  }
  // No matrix: filtered, frozen, or of another number of dimensions.
  EXPECT_THROW(optim::Muon(c.parameters, {.matrices = [](const auto&) { return false; }}), Error);
  EXPECT_THROW(optim::Muon({c.parameters[3]}, {}), Error);
  for (std::size_t i = 0; i < 3; ++i) {
    Tensor matrix = c.parameters[i].tensor;
    matrix.set_requires_grad(false);
  }
  EXPECT_THROW(optim::Muon(c.parameters, {}), Error);
}

class MuonNet : public nn::Module {
 public:
  MuonNet() {
    table = register_module("table", nn::Embedding(6, 4));
    inner = register_module("inner", nn::Linear(4, 3));
    head = register_module("lm_head", nn::Linear(3, 6));
  }
  nn::Embedding table;
  nn::Linear inner, head;
};

class StackedMatricesImpl : public nn::Module {
 public:
  explicit StackedMatricesImpl(std::int64_t matrices) {
    register_parameter("weight", Tensor::zeros({matrices, 4, 5}));
    register_parameter("weight_bias", Tensor::zeros({matrices, 5}));
  }
};
TESSERA_MODULE(StackedMatrices);

// Biases of several matrices that lie in one tensor are vectors.
TEST(Muon, LeavesStackedBiasesOut) {
  struct Whole : nn::Module {
    Whole() {
      register_module("stack", StackedMatrices(3));
      register_parameter("matrix", Tensor::zeros({4, 5}));
    }
  } net;
  const optim::ParameterFilter hidden = optim::hidden_matrices(net);
  std::vector<std::string> names;
  for (const nn::NamedParameter& parameter : net.parameters()) {
    if (hidden(parameter)) names.push_back(parameter.name);
  }
  EXPECT_EQ(names, std::vector<std::string>{"matrix"});
}

TEST(Muon, KnowsHiddenMatrices) {
  MuonNet net;
  const optim::ParameterFilter hidden = optim::hidden_matrices(net);
  std::vector<std::string> names;
  for (const nn::NamedParameter& parameter : net.parameters()) {
    if (hidden(parameter)) names.push_back(parameter.name);
  }
  EXPECT_EQ(names, std::vector<std::string>{"inner.weight"});
}

}  // namespace
}  // namespace tessera

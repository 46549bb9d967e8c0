// Experts in one tensor against loops in fp64: biases, the interleaved gate, its clamps, uneven
// use, and a few tokens at a time.
#include "models/stacked_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/random.h"
#include "engine/tensor_ops.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;
using models::MixtureOfExperts;

constexpr std::int64_t stacked_width = 6, stacked_inner = 5, stacked_count = 4;

MixtureOfExperts stacked_mixture(models::ClampedGate gate) {
  manual_seed(3);
  const nn::ParameterDTypeGuard doubles(float64);
  MixtureOfExperts mixture(models::MixtureOfExpertsOptions{.width = stacked_width,
                                                           .inner = stacked_inner,
                                                           .experts = stacked_count,
                                                           .per_token = 2,
                                                           .deviation = 0.7,
                                                           .router = "router",
                                                           .router_bias = true,
                                                           .stacked = gate});
  // Biases begin as zeros, which would hide that one is forgotten.
  unsigned seed = 50;
  for (const auto& parameter : mixture->named_parameters()) {
    Tensor tensor = parameter.tensor;
    const NoGradGuard no_grad;
    if (parameter.name.ends_with("_bias"))
      tensor.copy_from(testing::values(tensor.shape(), ++seed));
  }
  return mixture;
}

Tensor parameter_named(const MixtureOfExperts& mixture, const std::string& name) {
  for (const auto& parameter : mixture->named_parameters()) {
    if (parameter.name == name) return parameter.tensor;
  }
  ADD_FAILURE() << "there is no " << name;
  return {};
}

// x times matrix [x.size(), out], plus the bias.
Doubles applied(const MixtureOfExperts& mixture, const std::string& name, std::int64_t expert,
                const Doubles& x) {
  const Doubles matrix = select(parameter_named(mixture, "experts." + name), 0, expert).to_vector();
  Doubles y = select(parameter_named(mixture, "experts." + name + "_bias"), 0, expert).to_vector();
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += x[i] * matrix[i * y.size() + o];
  }
  return y;
}

Doubles plain_token(const MixtureOfExperts& mixture, const Doubles& token,
                    models::ClampedGate gate) {
  const Doubles weight = parameter_named(mixture, "router.weight").to_vector();
  Doubles logits = parameter_named(mixture, "router.bias").to_vector();
  for (std::size_t e = 0; e < logits.size(); ++e) {
    for (std::size_t i = 0; i < token.size(); ++i)
      logits[e] += weight[e * token.size() + i] * token[i];
  }
  std::vector<std::size_t> order{0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return logits[a] > logits[b]; });
  const double first = std::exp(logits[order[0]]), second = std::exp(logits[order[1]]);
  Doubles y(token.size());
  for (const std::size_t place : {0, 1}) {
    const auto expert = static_cast<std::int64_t>(order[place]);
    const Doubles gate_up = applied(mixture, "gate_up_proj", expert, token);
    Doubles inner(gate_up.size() / 2);
    for (std::size_t i = 0; i < inner.size(); ++i) {
      const double g = std::min(gate_up[2 * i], gate.limit);
      const double up = std::clamp(gate_up[2 * i + 1], -gate.limit, gate.limit);
      inner[i] = g / (1 + std::exp(-gate.alpha * g)) * (up + 1);
    }
    const Doubles out = applied(mixture, "down_proj", expert, inner);
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] += out[i] * (place == 0 ? first : second) / (first + second);
    }
  }
  return y;
}

TEST(StackedExperts, ComputeWhatLoopsCompute) {
  for (const models::ClampedGate gate : {models::ClampedGate{}, {.alpha = 0.9, .limit = 0.4}}) {
    const MixtureOfExperts mixture = stacked_mixture(gate);
    const Tensor x = testing::values({3, 5, stacked_width}, 7);
    const Doubles got = mixture(x).to_vector(), tokens = x.to_vector();
    for (std::size_t t = 0; t < 15; ++t) {
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(t) * stacked_width;
      const Doubles wanted = plain_token(mixture, {begin, begin + stacked_width}, gate);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(got[t * wanted.size() + i], wanted[i], 1e-12) << t << ", limit " << gate.limit;
      }
    }
  }
}

TEST(StackedExperts, AFewTokensAtATimeGiveTheSame) {
  const testing::OneThread one_thread;
  const NoGradGuard no_grad;
  const MixtureOfExperts mixture = stacked_mixture({.limit = 0.4});
  const Tensor x = testing::values({1, 9, stacked_width}, 8);
  const Doubles whole = mixture(x).to_vector();
  for (std::int64_t t = 0; t < 9; ++t) {
    const Doubles one = mixture
                            .call([&](const models::MixtureOfExpertsImpl& impl) {
                              return impl.decode(narrow(x, 1, t, 1));
                            })
                            .to_vector();
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(one[i], whole[static_cast<std::size_t>(t * stacked_width) + i], 1e-12);
    }
  }
}

TEST(StackedExperts, GradientsAgreeWithDifferences) {
  const MixtureOfExperts mixture = stacked_mixture({.alpha = 0.9, .limit = 0.6});
  const Tensor x = testing::leaf({2, 3, stacked_width}, 9);
  std::vector<Tensor> leaves{x};
  for (const auto& parameter : mixture->named_parameters()) leaves.push_back(parameter.tensor);
  testing::check_gradients([&] { return testing::weighted_sum(mixture(x)); }, leaves);
}

TEST(StackedExperts, CountAsExperts) {
  const MixtureOfExperts mixture = stacked_mixture({});
  EXPECT_TRUE(models::has_experts(*mixture));
  EXPECT_TRUE(models::trains_stacked_experts(*mixture));
  const MixtureOfExperts separate(
      models::MixtureOfExpertsOptions{.width = 4, .inner = 3, .experts = 2});
  EXPECT_TRUE(models::has_experts(*separate));
  EXPECT_FALSE(models::trains_stacked_experts(*separate));
  EXPECT_EQ(mixture->children().back().second->class_name(), "Experts");
}

}  // namespace
}  // namespace tessera

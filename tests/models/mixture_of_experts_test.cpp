// A mixture of experts against loops in fp64: the choice and the weights of experts, their sum, the
// load-balancing loss, one token at a time, uneven use, and bad sizes.
#include "models/mixture_of_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/random.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;
using models::MixtureOfExperts;

const models::MixtureOfExpertsOptions small_mixture{
    .width = 6, .inner = 5, .experts = 4, .per_token = 2, .deviation = 0.7};

Doubles weight_named(const MixtureOfExperts& mixture, const std::string& name) {
  for (const auto& parameter : mixture->named_parameters()) {
    if (parameter.name == name) return parameter.tensor.to_vector();
  }
  ADD_FAILURE() << "there is no " << name;
  return {};
}

// matrix [rows, x.size()] times x.
Doubles times(const Doubles& matrix, const Doubles& x) {
  Doubles y(matrix.size() / x.size());
  for (std::size_t r = 0; r < y.size(); ++r) {
    for (std::size_t i = 0; i < x.size(); ++i) y[r] += matrix[r * x.size() + i] * x[i];
  }
  return y;
}

struct PlainMixture {
  Doubles y;
  Doubles tokens, probabilities;  // by expert
};

PlainMixture plain_mixture(const MixtureOfExperts& mixture, const Tensor& x,
                           const models::MixtureOfExpertsOptions& o) {
  const auto experts = static_cast<std::size_t>(o.experts);
  const auto width = static_cast<std::size_t>(o.width);
  PlainMixture result{{}, Doubles(experts), Doubles(experts)};
  const Doubles values = x.to_vector();
  for (std::size_t first = 0; first < values.size(); first += width) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    const Doubles token(begin, begin + o.width);
    Doubles p = times(weight_named(mixture, "gate.weight"), token);
    for (double& logit : p) logit = std::exp(logit);
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& one : p) one /= total;
    std::vector<std::size_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] > p[b]; });
    order.resize(static_cast<std::size_t>(o.per_token));
    double divisor = o.normalized ? 0 : 1;
    if (o.normalized) {
      for (const std::size_t e : order) divisor += p[e];
    }
    Doubles y(width);
    for (const std::size_t e : order) {
      const std::string name = "experts." + std::to_string(e) + ".";
      Doubles inner = times(weight_named(mixture, name + o.gate + ".weight"), token);
      const Doubles up = times(weight_named(mixture, name + o.up + ".weight"), token);
      for (std::size_t i = 0; i < inner.size(); ++i) {
        inner[i] = inner[i] / (1 + std::exp(-inner[i])) * up[i];
      }
      const Doubles out = times(weight_named(mixture, name + o.down + ".weight"), inner);
      for (std::size_t i = 0; i < width; ++i) y[i] += p[e] / divisor * out[i];
      result.tokens[e] += 1;
    }
    result.y.insert(result.y.end(), y.begin(), y.end());
    for (std::size_t e = 0; e < experts; ++e) result.probabilities[e] += p[e];
  }
  return result;
}

void expect_all_near(const Doubles& got, const Doubles& wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], tolerance) << i;
}

MixtureOfExperts fp64_mixture(const models::MixtureOfExpertsOptions& options, unsigned seed = 1) {
  const nn::ParameterDTypeGuard fp64(float64);
  manual_seed(seed);
  return MixtureOfExperts(options);
}

TEST(MixtureOfExperts, IsTheWeightedSumOfATokensExperts) {
  for (const bool normalized : {true, false}) {
    for (const std::int64_t per_token : {1, 2, 4}) {
      models::MixtureOfExpertsOptions options = small_mixture;
      options.normalized = normalized;
      options.per_token = per_token;
      const MixtureOfExperts mixture = fp64_mixture(options);
      const Tensor x = testing::values({3, 7, 6}, 3);
      const PlainMixture wanted = plain_mixture(mixture, x, options);
      const Tensor y = mixture(x);
      EXPECT_EQ(y.shape(), x.shape());
      expect_all_near(y.to_vector(), wanted.y, 1e-12);
      const auto [again, routing] = mixture(x, models::no_routing(4));
      EXPECT_EQ(again.to_vector(), y.to_vector());
      expect_all_near(select(routing, 0, 0).to_vector(), wanted.tokens, 0);
      expect_all_near(select(routing, 0, 1).to_vector(), wanted.probabilities, 1e-12);
    }
  }
}

TEST(MixtureOfExperts, OneTokenAtATimeGivesTheSame) {
  const NoGradGuard no_grad;
  manual_seed(2);
  const MixtureOfExperts mixture(small_mixture);
  const Tensor x = cast(testing::values({5, 1, 6}, 4), float32);
  const Doubles all = mixture(x).to_vector();
  const auto decode = [&](const Tensor& tokens) {
    return mixture
        .call([&](const models::MixtureOfExpertsImpl& impl) { return impl.decode(tokens); })
        .to_vector();
  };
  expect_all_near(decode(x), all, 1e-5);
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(i) * 6;
    expect_all_near(decode(narrow(x, 0, i, 1)), {first, first + 6}, 1e-5);
  }
}

TEST(MixtureOfExperts, GradientsAgreeWithDifferences) {
  const testing::OneThread one_thread;
  const MixtureOfExperts mixture = fp64_mixture(small_mixture, 5);
  const Tensor x = testing::leaf({9, 6}, 6);
  std::vector<Tensor> leaves{x};
  for (const auto& parameter : mixture->named_parameters()) leaves.push_back(parameter.tensor);
  testing::check_gradients(
      [&] {
        const auto [y, routing] = mixture(x, models::no_routing(4));
        return testing::weighted_sum(y) + models::load_balance_loss(routing, 9);
      },
      leaves, {.max_elements = 10});
}

// All tokens are equal, so they have the same experts; the others have none.
TEST(MixtureOfExperts, ExpertsWithoutTokensHaveGradientsOfZero) {
  const MixtureOfExperts mixture = fp64_mixture(small_mixture);
  const Tensor x = Tensor::full({10, 6}, 0.5, float64);
  const PlainMixture plain = plain_mixture(mixture, x, small_mixture);
  EXPECT_EQ(std::count(plain.tokens.begin(), plain.tokens.end(), 10.0), 2);
  expect_all_near(mixture(x).to_vector(), plain.y, 1e-12);
  sum(mixture(x)).backward();
  for (const auto& parameter : mixture->named_parameters()) {
    if (parameter.name == "gate.weight") continue;
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    const Doubles gradient = parameter.tensor.grad().to_vector();
    const auto expert =
        static_cast<std::size_t>(parameter.name.at(std::string("experts.").size()) - '0');
    EXPECT_EQ(gradient == Doubles(gradient.size(), 0), plain.tokens[expert] == 0) << parameter.name;
  }
}

TEST(LoadBalanceLoss, IsPerTokenInEqualUseAndGrowsWithUnequalUse) {
  const auto loss = [](const Doubles& tokens, const Doubles& probabilities) {
    Doubles both = tokens;
    both.insert(both.end(), probabilities.begin(), probabilities.end());
    return models::load_balance_loss(Tensor::from(both, {2, 4}), 8).item();
  };
  EXPECT_DOUBLE_EQ(loss({4, 4, 4, 4}, {2, 2, 2, 2}), 2);
  EXPECT_DOUBLE_EQ(loss({8, 8, 0, 0}, {3, 3, 1, 1}), 4 * (3 + 3) / 8.0);
}

// Two mixtures with as many tokens: the sums are those of both.
TEST(LoadBalanceLoss, IsThatOfSeveralMixturesTogether) {
  const MixtureOfExperts first = fp64_mixture(small_mixture, 7),
                         second = fp64_mixture(small_mixture, 8);
  const Tensor x = testing::values({12, 6}, 9);
  const auto [y, routing] = first(x, models::no_routing(4));
  const auto [z, both] = second(y, routing);
  const PlainMixture a = plain_mixture(first, x, small_mixture);
  const PlainMixture b = plain_mixture(second, y, small_mixture);
  double wanted = 0;
  for (std::size_t e = 0; e < 4; ++e) {
    wanted += 4 * (a.tokens[e] + b.tokens[e]) / 24 * (a.probabilities[e] + b.probabilities[e]) / 24;
  }
  EXPECT_NEAR(models::load_balance_loss(both, 24).item(), wanted, 1e-12);
}

TEST(MixtureOfExperts, NamesAreThoseOfTheOptions) {
  models::MixtureOfExpertsOptions options = small_mixture;
  options.experts = 2;
  options.gate = "w1";
  options.up = "w3";
  options.down = "w2";
  std::vector<std::string> lines;
  for (const auto& [name, tensor, shape] : MixtureOfExperts(options)->named_parameters()) {
    lines.push_back(name + " " + shape.to_string());
  }
  EXPECT_EQ(lines,
            (std::vector<std::string>{"gate.weight [2, 6]", "experts.0.w1.weight [5, 6]",
                                      "experts.0.w3.weight [5, 6]", "experts.0.w2.weight [6, 5]",
                                      "experts.1.w1.weight [5, 6]", "experts.1.w3.weight [5, 6]",
                                      "experts.1.w2.weight [6, 5]"}));
}

TEST(MixtureOfExperts, RefusesBadInputByName) {
  const auto expect = [](const std::function<void()>& call, const std::string& part) {
    const std::string message = testing::misuse_of(call);
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  };
  models::MixtureOfExpertsOptions options = small_mixture;
  options.per_token = 5;
  expect([&] { (void)MixtureOfExperts(options); },
         "MixtureOfExperts of width 6, 4 experts of width 5, 5 for each token");
  options.per_token = 0;
  expect([&] { (void)MixtureOfExperts(options); }, "sizes must be positive");
  const MixtureOfExperts mixture = fp64_mixture(small_mixture);
  expect(
      [&] {
        (void)mixture(Tensor::zeros({2, 5}, float64));
      },
      "MixtureOfExperts: x of shape [2, 5]; its last dimension must be 6");
  expect(
      [&] {
        (void)models::load_balance_loss(Tensor::zeros({2, 4}), 3);
      },
      "load_balance_loss: routing of float32 [2, 4] of 3 tokens");
  expect([&] { (void)models::load_balance_loss(models::no_routing(4), 0); }, "of 0 tokens");
}

}  // namespace
}  // namespace tessera

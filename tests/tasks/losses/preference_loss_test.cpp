// The losses of pairs of answers: the values of their formulas, the gradients of differences, and
// rewards.
#include "tasks/losses/preference_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "engine/ops.h"

namespace tessera::tasks {
namespace {

using Values = std::vector<double>;

// Log-probabilities of three pairs: chosen, then rejected.
const Values trained = {-12.5, -3.25, -40.0, -14.0, -2.5, -44.5};
const Values of_reference = {-12.0, -4.0, -41.5, -13.0, -3.5, -41.0};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The mean of a formula of h.
double mean_over_pairs(const Values& log_probs, const std::function<double(double)>& loss) {
  double sum = 0;
  const std::size_t pairs = log_probs.size() / 2;
  for (std::size_t i = 0; i < pairs; ++i) {
    sum +=
        loss((log_probs[i] - of_reference[i]) - (log_probs[pairs + i] - of_reference[pairs + i]));
  }
  return sum / static_cast<double>(pairs);
}

std::function<double(double)> formula_of(const PreferenceOptions& options) {
  const double beta = options.beta, s = options.label_smoothing;
  switch (options.loss) {
    case PreferenceLoss::ipo:
      return [=](double h) { return std::pow(h - 1 / (2 * beta), 2); };
    case PreferenceLoss::hinge:
      return [=](double h) { return std::max(0.0, 1 - beta * h); };
    case PreferenceLoss::sigmoid:
      break;
  }
  return [=](double h) {
    return -(1 - s) * std::log(sigmoid(beta * h)) - s * std::log(sigmoid(-beta * h));
  };
}

const std::vector<PreferenceOptions>& all_options() {
  static const std::vector<PreferenceOptions> options = {
      {},
      {.beta = 0.7},
      {.beta = 0.3, .label_smoothing = 0.2},
      {.beta = 0.3, .label_smoothing = 0.5},
      {.beta = 0.2, .loss = PreferenceLoss::ipo},
      {.beta = 0.4, .loss = PreferenceLoss::hinge}};
  return options;
}

TEST(PreferenceLoss, HasTheFormulasValuesAndGradients) {
  for (const PreferenceOptions& options : all_options()) {
    for (const DType dtype : {float32, float64}) {
      Tensor log_probs = cast(Tensor::from(trained, {2, 3}), dtype).clone();
      log_probs.set_requires_grad(true);
      Tensor reference = cast(Tensor::from(of_reference, {2, 3}), dtype).clone();
      reference.set_requires_grad(true);
      const Tensor loss = preference_loss(log_probs, reference, options);
      loss.backward();
      const auto formula = formula_of(options);
      const double tolerance = dtype == float64 ? 1e-13 : 1e-6;
      const double expected = mean_over_pairs(trained, formula);
      EXPECT_EQ(loss.dtype(), dtype);
      EXPECT_NEAR(loss.item(), expected, tolerance * expected);
      EXPECT_FALSE(reference.grad().defined());
      const Values gradient = log_probs.grad().to_vector();
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        constexpr double step = 1e-4;
        Values more = trained, less = trained;
        more[i] += step;
        less[i] -= step;
        const double slope =
            (mean_over_pairs(more, formula) - mean_over_pairs(less, formula)) / (2 * step);
        EXPECT_NEAR(gradient[i], slope, dtype == float64 ? 1e-8 : 1e-6);
      }
    }
  }
}

// No logarithm of zero, and the gradient of a pair that is surely wrong is beta.
TEST(PreferenceLoss, StaysFiniteFarFromTheReference) {
  for (const double far : {-1e4, 1e4}) {
    Tensor log_probs = Tensor::from(std::vector<float>{static_cast<float>(far), 0}, {2, 1});
    log_probs.set_requires_grad(true);
    const Tensor loss = preference_loss(log_probs, Tensor::zeros({2, 1}), {.beta = 1});
    loss.backward();
    EXPECT_EQ(loss.item(), far < 0 ? 1e4 : 0);
    EXPECT_EQ(log_probs.grad().to_vector(), (far < 0 ? Values{-1, 1} : Values{0, 0}));
  }
}

TEST(PreferenceLoss, OfTheReferenceItselfIsLogarithmOfTwo) {
  const Tensor same = Tensor::from(trained, {2, 3});
  EXPECT_NEAR(preference_loss(same, same).item(), std::log(2.0), 1e-15);
}

TEST(PreferenceLoss, RewardsAreMeansOverPairs) {
  const PreferenceRewards rewards = preference_rewards(trained, of_reference, 0.1);
  EXPECT_NEAR(rewards.chosen, 0.1 * (-0.5 + 0.75 + 1.5) / 3, 1e-15);
  EXPECT_NEAR(rewards.rejected, 0.1 * (-1.0 + 1.0 - 3.5) / 3, 1e-15);
  EXPECT_NEAR(rewards.margin, rewards.chosen - rewards.rejected, 1e-15);
  EXPECT_NEAR(rewards.accuracy, 2.0 / 3, 1e-15);
}

TEST(PreferenceLoss, RefusesOtherShapesAndOptions) {
  const Tensor pairs = Tensor::zeros({2, 3});
  EXPECT_THROW((void)preference_loss(pairs, Tensor::zeros({2, 2})), std::logic_error);
  EXPECT_THROW((void)preference_loss(Tensor::zeros({3}), Tensor::zeros({3})), std::logic_error);
  EXPECT_THROW((void)preference_loss(pairs, pairs, {.beta = 0}), std::logic_error);
  EXPECT_THROW((void)preference_loss(pairs, pairs, {.label_smoothing = 0.6}), std::logic_error);
}

}  // namespace
}  // namespace tessera::tasks

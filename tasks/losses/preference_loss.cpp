// Losses of differences of log-probabilities.
#include "tasks/losses/preference_loss.h"

#include "base/error.h"
#include "engine/ops.h"
#include "engine/tensor_ops.h"

namespace tessera::tasks {
namespace {

// -log sigmoid(x), without a limit beyond which it is x itself.
Tensor minus_log_sigmoid(const Tensor& x) {
  constexpr double exact = 100;  // from there on log(1 + e^x) is x in every dtype
  return softplus(x * -1.0, 1, exact);
}

}  // namespace

Tensor preference_loss(const Tensor& log_probs, const Tensor& reference,
                       const PreferenceOptions& options) {
  TESSERA_REQUIRE(log_probs.dimensions() == 2 && log_probs.size(0) == 2 && log_probs.size(1) > 0 &&
                      reference.shape() == log_probs.shape(),
                  "preference_loss of shapes {} and {}; both are [2, pairs]",
                  log_probs.shape().to_string(), reference.shape().to_string());
  TESSERA_REQUIRE(
      options.beta > 0 && options.label_smoothing >= 0 && options.label_smoothing <= 0.5,
      "preference_loss with beta {} and label_smoothing {}: beta is above 0, and "
      "label_smoothing from 0 to 0.5",
      options.beta, options.label_smoothing);
  const std::vector<Tensor> ratios = split(log_probs - reference.detach(), 1);
  const Tensor advantage = ratios[0] - ratios[1];
  switch (options.loss) {
    case PreferenceLoss::sigmoid:
      break;
    case PreferenceLoss::ipo: {
      const Tensor missing = advantage + -1 / (2 * options.beta);
      return mean(missing * missing);
    }
    case PreferenceLoss::hinge:
      return mean(relu(advantage * -options.beta + 1));
  }
  const Tensor logits = advantage * options.beta;
  if (options.label_smoothing == 0) return mean(minus_log_sigmoid(logits));
  return mean(minus_log_sigmoid(logits) * (1 - options.label_smoothing) +
              minus_log_sigmoid(logits * -1.0) * options.label_smoothing);
}

PreferenceRewards preference_rewards(std::span<const double> log_probs,
                                     std::span<const double> reference, double beta) {
  TESSERA_REQUIRE(
      !log_probs.empty() && log_probs.size() % 2 == 0 && log_probs.size() == reference.size(),
      "preference_rewards of {} and {} values", log_probs.size(), reference.size());
  const std::size_t pairs = log_probs.size() / 2;
  PreferenceRewards sums;
  for (std::size_t i = 0; i < pairs; ++i) {
    const double chosen = beta * (log_probs[i] - reference[i]);
    const double rejected = beta * (log_probs[pairs + i] - reference[pairs + i]);
    sums.chosen += chosen;
    sums.rejected += rejected;
    sums.accuracy += chosen > rejected ? 1 : 0;
    sums.margin += chosen - rejected;
  }
  const double share = 1 / static_cast<double>(pairs);
  return {sums.chosen * share, sums.rejected * share, sums.accuracy * share, sums.margin * share};
}

}  // namespace tessera::tasks

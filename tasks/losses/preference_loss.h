// The loss of a language model that learns which of two answers is preferred.
#pragma once

#include <cstdint>
#include <span>

#include "engine/tensor.h"

namespace tessera::tasks {

enum class PreferenceLoss : std::uint8_t { sigmoid, ipo, hinge };

struct PreferenceOptions {
  double beta = 0.1;  // above 0
  PreferenceLoss loss = PreferenceLoss::sigmoid;
  // The part of the pairs whose labels are taken to be wrong: from 0 to 0.5, for sigmoid.
  double label_smoothing = 0;
};

// The mean over pairs of a loss of h = (chosen - reference's chosen) - (rejected - reference's
// rejected), log-probabilities of answers, as one element:
//
//   sigmoid  -(1 - s) log sigmoid(beta h) - s log sigmoid(-beta h), s being label_smoothing.
//            Rafailov et al. 2023, arXiv:2305.18290, equation 7; s is that of conservative DPO
//   ipo      (h - 1 / (2 beta))^2, in TRL of log-probabilities divided by the answers' tokens.
//            Azar et al. 2023, arXiv:2310.12036, equation 17
//   hinge    max(0, 1 - beta h). Zhao et al. 2023, arXiv:2305.10425
//
// log_probs and reference [2, pairs], fp32 or fp64: the chosen answers first. The reference gets no
// gradient.
Tensor preference_loss(const Tensor& log_probs, const Tensor& reference,
                       const PreferenceOptions& options = {});

// Means over pairs. A reward is beta * (the log-probability - the reference's). `accuracy` is the
// part of the pairs whose chosen answer has the higher reward.
struct PreferenceRewards {
  double chosen = 0, rejected = 0, accuracy = 0, margin = 0;
};
// From the values of preference_loss()'s tensors.
PreferenceRewards preference_rewards(std::span<const double> log_probs,
                                     std::span<const double> reference, double beta);

}  // namespace tessera::tasks

// The division of a micro-batch over the ranks: equal parts, parts by given weights, or parts by
// the ranks' measured speed. Which samples a step has, and their order, do not depend on it: a rank
// takes the samples after those of the ranks before it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/state/scalars.h"

namespace tessera {

// Without weights and without `measured` the parts are equal.
struct RankWeightOptions {
  std::vector<double> given = {};     // one positive number for each rank
  bool measured = false;              // by the ranks' speed; then there are no given weights
  std::int64_t rebalance_every = 20;  // measured: steps between two comparisons of the speeds
  double limit = 2;  // measured: a rank takes at most so many times the samples of an equal part

  [[nodiscard]] bool are_equal() const { return given.empty() && !measured; }
};

// The samples of each rank by their weights: at least 1, at most `most`, and such that the largest
// quotient of samples and weight is as small as it can be (D'Hondt's method; among equal choices
// the lowest rank). Weights that are whole numbers with the sum `samples` are the result
// themselves. There are at least as many samples as ranks.
std::vector<std::int64_t> divide_samples(
    std::span<const double> weights, std::int64_t samples,
    std::int64_t most = std::numeric_limits<std::int64_t>::max());

// The samples that a rank takes at most. `batch_size`: those of an equal part.
std::int64_t largest_share(const RankWeightOptions& options, int ranks, std::int64_t batch_size);

// The parts in force. Each rank has one of its own, and all decide alike, because they see the same
// times.
class RankShares {
 public:
  // Another division must be better by so much before it is taken: the slowest rank's time for its
  // samples would fall by this part of the new one.
  static constexpr double least_gain = 0.05;

  // `option` begins messages: the place and the name of the option. Error(configuration) if the
  // weights are not one positive number for each rank.
  RankShares(const RankWeightOptions& options, int ranks, std::int64_t batch_size,
             const std::string& option);

  [[nodiscard]] std::int64_t all() const { return all_; }  // samples of a micro-batch of all ranks
  [[nodiscard]] const std::vector<std::int64_t>& samples() const { return samples_; }  // by rank
  [[nodiscard]] std::int64_t samples_of(int rank) const {
    return samples_[static_cast<std::size_t>(rank)];
  }
  // The place of the rank's first sample in a micro-batch of all ranks.
  [[nodiscard]] std::int64_t first_of(int rank) const;
  [[nodiscard]] bool are_equal() const;
  [[nodiscard]] bool are_measured() const { return options_.measured; }
  // Whether the options ask for parts that may be unequal.
  [[nodiscard]] bool are_asked() const { return !options_.are_equal(); }

  // A rank's work in a step: the tokens of its samples, and the seconds of their forwards and
  // backwards without waits for other ranks and for data.
  struct Work {
    std::int64_t tokens = 0;
    double seconds = 0;
  };
  // The work of all ranks in a step. The first step with new parts does not count: it allocates.
  void add(const std::vector<Work>& ranks);
  // After the step with this number. True if the parts of later steps are others. The times are
  // forgotten then, and at each comparison.
  bool settle(std::int64_t step);

  // The parts, if they may be unequal. A run with measured parts goes on with saved ones of as many
  // ranks. Error(checkpoint) for values that no run has saved.
  void save(Scalars& scalars) const;
  void restore(const Scalars& scalars, const std::string& folder);

 private:
  void begin_times();

  RankWeightOptions options_;
  std::int64_t all_;
  std::int64_t most_;
  std::vector<std::int64_t> samples_;
  std::vector<Work> sums_;  // since the last comparison
  bool first_step_ = true;  // with these parts
};

// The time by which the slowest rank computes longer than the mean of the ranks, as a part of the
// mean: 0 if all take equally long, or if nothing was measured.
double imbalance_of(const std::vector<RankShares::Work>& ranks);

// "11 and 5", or with many ranks "5 to 11".
std::string text_of_shares(const std::vector<std::int64_t>& samples);

}  // namespace tessera

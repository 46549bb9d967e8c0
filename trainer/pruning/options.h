// Which weights a run prunes, and when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class PruneMethod : std::uint8_t {
  global,     // the smallest magnitudes of all pruned weights together
  per_layer,  // the smallest magnitudes of each weight by itself
  two_four,   // of four inputs in a row that an output reads, the two smallest magnitudes
  // Magnitude times the norm of the input over calibration batches (Sun et al. 2023, "A Simple and
  // Effective Pruning Approach for Large Language Models", arXiv:2306.11695, section 3):
  wanda,           // the smallest of each output
  wanda_two_four,  // of four inputs in a row that an output reads, the two smallest
};

// Whether a method chooses in groups of four.
inline bool is_two_four(PruneMethod method) {
  return method == PruneMethod::two_four || method == PruneMethod::wanda_two_four;
}
// Whether it needs the norms of inputs.
inline bool weighs_inputs(PruneMethod method) {
  return method == PruneMethod::wanda || method == PruneMethod::wanda_two_four;
}

// A matrix of a linear layer: [out, in], or [in, out] with `in_first`.
struct PrunedWeight {
  std::string name;  // of the parameter
  bool in_first = false;
};

// The part of the weights that is zero after step t is
//   sparsity * (1 - (1 - (t - begin) / (end - begin))^3)   for begin <= t <= end
// (Zhu and Gupta 2017, "To prune, or not to prune", arXiv:1710.01878, equation 1, from a sparsity
// of 0). Weights are chosen after the steps begin, begin + every, ... and after `end`; from the
// first of them on, an element of a pruned weight that is zero stays zero.
struct PruningOptions {
  PruneMethod method = PruneMethod::global;
  double sparsity = 0.5;   // above 0 and below 1; groups of four: 0.5
  std::int64_t begin = 1;  // at least 1
  std::int64_t end = 1;    // at least `begin`; the same: all at once
  std::int64_t every = 100;
  std::vector<PrunedWeight> weights = {};
  // With norms of inputs: a rank's batches of TrainerOptions::batch_size samples, at least 1.
  std::int64_t calibration_batches = 8;

  [[nodiscard]] double sparsity_after(std::int64_t step) const {
    if (step < begin) return 0;
    if (step >= end) return sparsity;
    const double rest = static_cast<double>(end - step) / static_cast<double>(end - begin);
    return sparsity * (1 - rest * rest * rest);
  }
  [[nodiscard]] bool chooses_after(std::int64_t step) const {
    return step == end || (step >= begin && step < end && (step - begin) % every == 0);
  }
};

}  // namespace tessera

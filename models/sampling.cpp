// Draws without sorting the vocabulary: takes the most probable tokens off a heap until the draw is
// reached.
#include "models/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/random.h"

namespace tessera::models {
namespace {

struct Candidate {
  float logit;
  std::int32_t id;
};

// Order of a heap whose top is the most probable candidate; among equals, the smallest id.
bool less_probable(const Candidate& a, const Candidate& b) {
  return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
}

// A number in [0, 1) of 53 bits.
double draw(std::uint64_t seed, std::uint64_t index) {
  const auto words = kernels::philox({seed, 0}, index);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

std::vector<Candidate> most_probable(std::span<const float> logits, std::int64_t top_k) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates.push_back({logits[i], static_cast<std::int32_t>(i)});
  }
  if (top_k > 0 && top_k < static_cast<std::int64_t>(candidates.size())) {
    const auto end = candidates.begin() + top_k;
    std::ranges::nth_element(candidates, end, [](const Candidate& a, const Candidate& b) {
      return less_probable(b, a);
    });
    candidates.erase(end, candidates.end());
  }
  return candidates;
}

}  // namespace

std::int64_t choose_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t index) {
  const auto greedy = std::ranges::max_element(logits);
  if (options.temperature == 0) return greedy - logits.begin();
  const double largest = *greedy;
  std::vector<Candidate> heap = most_probable(logits, options.top_k);
  const auto weight = [&](const Candidate& candidate) {
    return std::exp((candidate.logit - largest) / options.temperature);
  };
  double total = 0;
  for (const Candidate& candidate : heap) total += weight(candidate);
  std::ranges::make_heap(heap, less_probable);
  std::vector<Candidate> taken;
  std::vector<double> cumulative;
  // Takes as many as needed: to the end of the nucleus or, without one, to the draw.
  const double drawn = draw(options.seed, index);
  const double wanted = options.top_p < 1 ? options.top_p * total : drawn * total;
  double sum = 0;
  while (!heap.empty() &&
         (taken.empty() || sum < wanted || (options.top_p == 1 && sum == wanted))) {
    std::ranges::pop_heap(heap, less_probable);
    taken.push_back(heap.back());
    heap.pop_back();
    sum += weight(taken.back());
    cumulative.push_back(sum);
  }
  const double at = options.top_p < 1 ? drawn * sum : wanted;
  const auto place =
      std::min<std::ptrdiff_t>(std::ranges::upper_bound(cumulative, at) - cumulative.begin(),
                               static_cast<std::ptrdiff_t>(taken.size()) - 1);
  return taken[static_cast<std::size_t>(place)].id;
}

}  // namespace tessera::models

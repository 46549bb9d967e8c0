// Rotary frequencies and tables.
#include "models/llama/rope.h"

#include <cmath>
#include <numbers>

namespace tessera::models {
namespace {

double llama3_scaled(double frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double turns = original * frequency / (2 * std::numbers::pi);  // within the first context
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double kept =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(std::int64_t head_dim, double theta,
                                    const RopeScaling& scaling) {
  std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(head_dim);
    double frequency = static_cast<float>(std::pow(theta, -exponent));
    if (scaling.rope_type == "linear") frequency /= scaling.factor;
    if (scaling.rope_type == "llama3") frequency = llama3_scaled(frequency, scaling);
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

RopeTables make_rope_tables(const std::vector<float>& frequencies, std::int64_t positions,
                            Device device) {
  const std::size_t pairs = frequencies.size();
  std::vector<float> cosine(static_cast<std::size_t>(positions) * pairs);
  std::vector<float> sine(cosine.size());
  for (std::size_t at = 0; at < cosine.size(); ++at) {
    const std::size_t position = at / pairs;
    const float angle = static_cast<float>(position) * frequencies[at % pairs];
    cosine[at] = static_cast<float>(std::cos(static_cast<double>(angle)));
    sine[at] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
  const Shape shape{positions, static_cast<std::int64_t>(pairs)};
  return {Tensor::from(cosine, shape).to(device), Tensor::from(sine, shape).to(device)};
}

}  // namespace tessera::models

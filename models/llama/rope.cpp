// Rotary frequencies and tables.
#include "models/llama/rope.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <optional>

#include "engine/ops.h"

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

// YaRN's ramp: pairs below `first` keep their frequency, those above `last` are stretched.
struct YarnRamp {
  double first;
  double last;

  YarnRamp(std::int64_t dim, double theta, const RopeScaling& scaling) {
    const auto size = static_cast<double>(dim);
    const auto original = static_cast<double>(scaling.original_max_position_embeddings);
    // The pair, as a fraction, that turns so often within the original positions.
    const auto pair_of = [&](double turns) {
      return size * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
    };
    first = pair_of(scaling.beta_fast.value_or(32));
    last = pair_of(scaling.beta_slow.value_or(1));
    if (scaling.truncate.value_or(true)) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, size - 1);
    if (first == last) last += 0.001;
  }
  [[nodiscard]] double stretched(std::size_t pair) const {
    return std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  }
};

double yarn_log_factor(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

}  // namespace

std::vector<float> rope_frequencies(std::int64_t dim, double theta, const RopeScaling& scaling) {
  std::vector<float> frequencies(static_cast<std::size_t>(dim / 2));
  std::optional<YarnRamp> ramp;
  if (scaling.rope_type == "yarn") ramp.emplace(dim, theta, scaling);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(dim);
    double frequency = static_cast<float>(std::pow(theta, -exponent));
    if (scaling.rope_type == "linear") frequency /= scaling.factor;
    if (scaling.rope_type == "llama3") frequency = llama3_scaled(frequency, scaling);
    if (ramp) {
      const double share = ramp->stretched(i);
      frequency = frequency * (1 - share) + frequency / scaling.factor * share;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

double rope_attention_factor(const RopeScaling& scaling) {
  if (scaling.rope_type != "yarn") return 1.0;
  if (scaling.attention_factor) return *scaling.attention_factor;
  const double weight = scaling.mscale.value_or(0);
  const double weight_below = scaling.mscale_all_dim.value_or(0);
  if (weight == 0 || weight_below == 0) return yarn_log_factor(scaling.factor, 1);
  return yarn_log_factor(scaling.factor, weight) / yarn_log_factor(scaling.factor, weight_below);
}

RopeTables make_rope_tables(const std::vector<float>& frequencies, std::int64_t positions,
                            Device device, double attention_factor) {
  const std::size_t pairs = frequencies.size();
  std::vector<float> cosine(static_cast<std::size_t>(positions) * pairs);
  std::vector<float> sine(cosine.size());
  const auto factor = static_cast<float>(attention_factor);
  for (std::size_t at = 0; at < cosine.size(); ++at) {
    const std::size_t position = at / pairs;
    const float angle = static_cast<float>(position) * frequencies[at % pairs];
    cosine[at] = static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
    sine[at] = static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
  }
  const Shape shape{positions, static_cast<std::int64_t>(pairs)};
  return {Tensor::from(cosine, shape).to(device), Tensor::from(sine, shape).to(device)};
}

RopeCache::RopeCache(std::int64_t dim, std::int64_t positions, double theta,
                     const RopeScaling& scaling)
    : positions_(positions),
      frequencies_(rope_frequencies(dim, theta, scaling)),
      attention_factor_(rope_attention_factor(scaling)) {}

const RopeTables& RopeCache::for_length(std::int64_t length, Device device) {
  if (!tables_.cosine || tables_.cosine.size(0) < length || tables_.cosine.device() != device) {
    const auto doubled =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(length)));
    tables_ =
        make_rope_tables(frequencies_, std::min(doubled, positions_), device, attention_factor_);
  }
  return tables_;
}

RopeTables RopeCache::for_positions(const Tensor& positions, std::int64_t length) {
  const RopeTables& tables = for_length(length, positions.device());
  return {embedding(positions, tables.cosine), embedding(positions, tables.sine)};
}

RopeTables RopeCache::for_rows(const Tensor& ids, const Documents& documents, Device device) {
  const std::int64_t length = whole_length(ids, documents);
  RopeTables tables;
  if (documents.starts.defined()) {
    tables = for_positions(reshape(documents.positions, {ids.elements()}).to(device), length);
    tables.document_starts = documents.starts;
  } else {
    tables = for_length(length, device);
    tables.first = first_position(ids, documents);
  }
  tables.ranks = documents.ranks;
  return tables;
}

}  // namespace tessera::models

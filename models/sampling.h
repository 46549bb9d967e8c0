// Chooses the next token from a model's logits.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::models {

struct SamplingOptions {
  double temperature = 0;  // 0: the most probable token each time
  std::int64_t top_k = 0;  // draw among the k most probable only; 0: all
  // Draw among the most probable tokens that together have this probability; 1: all. Applies to the
  // k.
  double top_p = 1;
  // The i-th new token draws from (seed, i), so that a run can be repeated exactly.
  std::uint64_t seed = 0;
};

// Among equal logits, the first token is chosen. No logit may be NaN.
std::int64_t choose_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t index);

}  // namespace tessera::models

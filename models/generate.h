// Text generation from a language model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "models/language_model.h"

namespace tessera::models {

struct GenerateOptions {
  std::int64_t max_new_tokens = 100;
  double temperature = 0;  // 0: the most probable token each time
  std::int64_t top_k = 0;  // draw among the k most probable only; 0: all
  std::uint64_t seed =
      0;  // the i-th new token draws from (seed, i), so a run can be repeated exactly
  std::optional<std::int64_t> stop_token = std::nullopt;  // ends the text when it comes
};

// Appends up to max_new_tokens to `prompt` and returns prompt and continuation. Dropout is off
// meanwhile, nothing is recorded. Past the model's positions the context is its last `positions()`
// tokens. `on_token` sees each new token. A prompt that is empty or has ids outside the vocabulary
// is an Error(data).
std::vector<std::int64_t> generate(LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options,
                                   const std::function<void(std::int64_t)>& on_token = {});

}  // namespace tessera::models

// Generates text with a language model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/language_model.h"
#include "models/sampling.h"

namespace tessera::models {

struct GenerateOptions {
  std::int64_t max_new_tokens = 100;
  SamplingOptions sampling = {};
  std::vector<std::int64_t> stop_tokens = {};  // each ends the text, and is part of it
};

// Called with each new token of a sequence.
using OnToken = std::function<void(std::size_t sequence, std::int64_t token)>;

// Most sequences that are continued together, so that the weights are read once for all of them.
inline constexpr std::size_t most_sequences = 8;

// Appends up to max_new_tokens to each prompt and returns prompts and continuations, bit for bit
// the same as for each prompt alone. Dropout is off meanwhile, and nothing is recorded. Caches, as
// long as the text may become, keep the model's results for past tokens. Past the model's positions
// the context is its last `positions()` tokens, which are computed again for each token. A prompt
// that is empty or has ids outside the vocabulary is an Error(data).
std::vector<std::vector<std::int64_t>> generate_all(LanguageModel& model,
                                                    std::vector<std::vector<std::int64_t>> prompts,
                                                    const GenerateOptions& options,
                                                    const OnToken& on_token = {});
// The same for one prompt.
std::vector<std::int64_t> generate(LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options,
                                   const std::function<void(std::int64_t)>& on_token = {});

}  // namespace tessera::models

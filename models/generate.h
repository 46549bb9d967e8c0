// Text generation from a language model, token by token.
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
  std::vector<std::int64_t> stop_tokens = {};  // each ends the text when it comes, and stands in it
};

// Told of each new token of a sequence.
using OnToken = std::function<void(std::size_t sequence, std::int64_t token)>;

// Sequences that are continued together at most: what reads the weights once for all of them.
inline constexpr std::size_t most_sequences = 8;

// Appends up to max_new_tokens to each prompt and returns prompts and continuations: those that
// each would have alone, by bits. Dropout is off meanwhile, nothing is recorded. What the model has
// seen is kept in caches that are as long as the text may become; past the model's positions the
// context is its last `positions()` tokens, which are computed anew for each token. A prompt that
// is empty or has ids outside the vocabulary is an Error(data).
std::vector<std::vector<std::int64_t>> generate_all(LanguageModel& model,
                                                    std::vector<std::vector<std::int64_t>> prompts,
                                                    const GenerateOptions& options,
                                                    const OnToken& on_token = {});
// One prompt.
std::vector<std::int64_t> generate(LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options,
                                   const std::function<void(std::int64_t)>& on_token = {});

}  // namespace tessera::models

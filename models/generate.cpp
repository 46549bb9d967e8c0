// The generation loop.
#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/nn/evaluation_mode.h"

namespace tessera::models {
namespace {

struct Sequence {
  std::size_t number;
  std::vector<std::int64_t> tokens;
  KeyValueCache cache;
  bool ended = false;
};

void check_request(const LanguageModel& model, const std::vector<std::int64_t>& prompt,
                   const GenerateOptions& options) {
  const SamplingOptions& sampling = options.sampling;
  TESSERA_REQUIRE(options.max_new_tokens >= 0 && sampling.temperature >= 0 && sampling.top_k >= 0 &&
                      sampling.top_p > 0 && sampling.top_p <= 1,
                  "generate: max_new_tokens {}, temperature {} and top_k {} cannot be negative, "
                  "and top_p {} must be above 0 and at most 1",
                  options.max_new_tokens, sampling.temperature, sampling.top_k, sampling.top_p);
  TESSERA_CHECK(!prompt.empty(), ErrorCode::data,
                "the prompt has no tokens; a model continues at least one");
  for (const std::int64_t id : prompt) {
    TESSERA_CHECK(id >= 0 && id < model.vocabulary(), ErrorCode::data,
                  "prompt id {} is outside the model's vocabulary of {}", id, model.vocabulary());
  }
}

class Generation {
 public:
  Generation(LanguageModel& model, const GenerateOptions& options, const OnToken& on_token)
      : model_(model),
        options_(options),
        on_token_(on_token),
        device_(model.parameters().front().tensor.device()) {}

  void run(std::span<Sequence> sequences) {
    for (std::int64_t i = 0; i < options_.max_new_tokens; ++i) {
      std::vector<Sequence*> single;  // its cache holds all but the last token
      for (Sequence& sequence : sequences) {
        if (sequence.ended) continue;
        const std::int64_t seen = sequence.cache.length();
        if (seen + 1 == size_of(sequence) && seen < sequence.cache.capacity()) {
          single.push_back(&sequence);
        } else {
          decode({&sequence}, context_of(sequence), i);
        }
      }
      std::vector<std::int64_t> last;
      for (const Sequence* sequence : single) last.push_back(sequence->tokens.back());
      if (!single.empty()) decode(single, last, i);
    }
  }

 private:
  static std::int64_t size_of(const Sequence& sequence) {
    return static_cast<std::int64_t>(sequence.tokens.size());
  }

  // The tokens that an empty cache starts with.
  std::span<const std::int64_t> context_of(Sequence& sequence) const {
    sequence.cache.clear();
    const std::int64_t first = std::max<std::int64_t>(0, size_of(sequence) - model_.positions());
    return std::span<const std::int64_t>(sequence.tokens).subspan(static_cast<std::size_t>(first));
  }

  void decode(const std::vector<Sequence*>& sequences, std::span<const std::int64_t> ids,
              std::int64_t index) {
    const auto count = static_cast<std::int64_t>(sequences.size());
    std::vector<KeyValueCache*> caches;
    for (Sequence* sequence : sequences) caches.push_back(&sequence->cache);
    const Shape shape{count, static_cast<std::int64_t>(ids.size()) / count};
    const Tensor logits =
        cast(model_.decode(DecodingBatch(Tensor::from(ids, shape).to(device_), caches)), float32)
            .to(Device::cpu());
    const auto vocabulary = static_cast<std::size_t>(logits.size(1));
    const std::span<const float> values(logits.data_as<float>(), sequences.size() * vocabulary);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      append(*sequences[i], values.subspan(i * vocabulary, vocabulary), index);
    }
  }

  void append(Sequence& sequence, std::span<const float> logits, std::int64_t index) {
    const bool sound = std::ranges::none_of(logits, [](float logit) { return std::isnan(logit); });
    TESSERA_CHECK(sound, ErrorCode::numeric,
                  "the model's logits after {} tokens are NaN; its weights are damaged",
                  sequence.tokens.size());
    const std::int64_t token =
        choose_token(logits, options_.sampling, static_cast<std::uint64_t>(index));
    sequence.tokens.push_back(token);
    if (on_token_) on_token_(sequence.number, token);
    sequence.ended = std::ranges::find(options_.stop_tokens, token) != options_.stop_tokens.end();
  }

  LanguageModel& model_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  Device device_;
};

}  // namespace

std::vector<std::vector<std::int64_t>> generate_all(LanguageModel& model,
                                                    std::vector<std::vector<std::int64_t>> prompts,
                                                    const GenerateOptions& options,
                                                    const OnToken& on_token) {
  for (const auto& prompt : prompts) check_request(model, prompt, options);
  const NoGradGuard no_grad;
  const nn::EvaluationMode evaluation(model);
  Generation generation(model, options, on_token);
  for (std::size_t first = 0; first < prompts.size(); first += most_sequences) {
    std::vector<Sequence> group;  // only their caches exist
    for (std::size_t i = first; i < std::min(first + most_sequences, prompts.size()); ++i) {
      const std::int64_t longest =
          static_cast<std::int64_t>(prompts[i].size()) + options.max_new_tokens;
      group.push_back(
          {i, std::move(prompts[i]), model.make_cache(std::min(longest, model.positions()))});
    }
    generation.run(group);
    for (Sequence& sequence : group) prompts[sequence.number] = std::move(sequence.tokens);
  }
  return prompts;
}

std::vector<std::int64_t> generate(LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options,
                                   const std::function<void(std::int64_t)>& on_token) {
  std::vector<std::vector<std::int64_t>> prompts;
  prompts.push_back(std::move(prompt));
  OnToken told;
  if (on_token) told = [&](std::size_t, std::int64_t token) { on_token(token); };
  return generate_all(model, std::move(prompts), options, told).front();
}

}  // namespace tessera::models

// The generation loop and the choice of a token.
#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "engine/autograd.h"
#include "kernels/base/error.h"
#include "kernels/random.h"

namespace tessera::models {
namespace {

// Evaluation mode for a scope.
class EvaluationScope {
 public:
  explicit EvaluationScope(nn::Module& module) : module_(module), training_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationScope() { module_.train(training_); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  nn::Module& module_;
  bool training_;
};

// The logits of the token that follows `context`, on the host: the choice is made there.
std::vector<double> next_logits(LanguageModel& model, std::span<const std::int64_t> context,
                                Device device) {
  const auto length = static_cast<std::int64_t>(context.size());
  const Tensor logits = model.forward(Tensor::from(context, {1, length}).to(device));
  const std::int64_t vocabulary = logits.size(-1);
  const std::size_t last =
      logits.impl()->offset +
      static_cast<std::size_t>((length - 1) * vocabulary) * size_of(logits.dtype());
  return Tensor::view_of(logits.storage(), last, {vocabulary}, logits.dtype()).to_vector();
}

// In [0, 1), of 53 bits.
double draw(std::uint64_t seed, std::uint64_t index) {
  const auto words = kernels::philox({seed, 0}, index);
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

std::int64_t choose(const std::vector<double>& logits, const GenerateOptions& options,
                    std::uint64_t index) {
  if (options.temperature == 0) {
    return std::ranges::max_element(logits) - logits.begin();  // the first of equals
  }
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int64_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logit(a) > logit(b); });
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  std::vector<double> cumulative;
  double total = 0;
  for (const std::int64_t id : order) {
    total += std::exp((logit(id) - logit(order.front())) / options.temperature);
    cumulative.push_back(total);
  }
  const auto at = std::ranges::upper_bound(cumulative, draw(options.seed, index) * total);
  const auto place = std::min<std::ptrdiff_t>(at - cumulative.begin(),
                                              static_cast<std::ptrdiff_t>(order.size()) - 1);
  return order[static_cast<std::size_t>(place)];
}

}  // namespace

std::vector<std::int64_t> generate(LanguageModel& model, std::vector<std::int64_t> prompt,
                                   const GenerateOptions& options,
                                   const std::function<void(std::int64_t)>& on_token) {
  TESSERA_REQUIRE(options.max_new_tokens >= 0 && options.temperature >= 0 && options.top_k >= 0,
                  "generate: max_new_tokens {}, temperature {} and top_k {} cannot be negative",
                  options.max_new_tokens, options.temperature, options.top_k);
  TESSERA_CHECK(!prompt.empty(), ErrorCode::data,
                "the prompt has no tokens; a model continues at least one");
  for (const std::int64_t id : prompt) {
    TESSERA_CHECK(id >= 0 && id < model.vocabulary(), ErrorCode::data,
                  "prompt id {} is outside the model's vocabulary of {}", id, model.vocabulary());
  }
  const NoGradGuard no_grad;
  const EvaluationScope evaluation(model);
  const Device device = model.parameters().front().tensor.device();
  const auto limit = static_cast<std::size_t>(model.positions());
  std::vector<std::int64_t> tokens = std::move(prompt);
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const std::size_t first = tokens.size() > limit ? tokens.size() - limit : 0;
    const std::vector<double> logits =
        next_logits(model, std::span<const std::int64_t>(tokens).subspan(first), device);
    for (const double value : logits) {
      TESSERA_CHECK(!std::isnan(value), ErrorCode::numeric,
                    "the model's logits after {} tokens are NaN; its weights are damaged",
                    tokens.size());
    }
    const std::int64_t token = choose(logits, options, static_cast<std::uint64_t>(i));
    tokens.push_back(token);
    if (on_token) on_token(token);
    if (options.stop_token == token) break;
  }
  return tokens;
}

}  // namespace tessera::models

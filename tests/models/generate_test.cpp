// Generation: greedy, sampled, repeatable, limited by the model's positions.
#include "models/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/autograd.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using Tokens = std::vector<std::int64_t>;

std::unique_ptr<models::LanguageModel> counting_model() {
  manual_seed(1);
  auto model = models::make_language_model({{"model_type", "gpt2"},
                                            {"vocab_size", 11},
                                            {"n_positions", 8},
                                            {"n_embd", 16},
                                            {"n_layer", 1},
                                            {"n_head", 2},
                                            {"resid_pdrop", 0.1}});
  (void)testing::losses_of_training(*model, 80);
  return model;
}

TEST(Generate, ContinuesTheLearnedSequence) {
  const auto model = counting_model();
  // Longer than the model's eight positions: only the end of the context is used.
  const Tokens tokens = models::generate(*model, {3, 4, 5}, {.max_new_tokens = 3});
  EXPECT_EQ(tokens, (Tokens{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(models::generate(*model, {0}, {.max_new_tokens = 30}).size(), 31u);
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(grad_enabled());
}

// Each token is the most probable one after a forward over the whole text.
TEST(Generate, PassesASlidingWindow) {
  nlohmann::json config = {{"model_type", "mistral"},  {"vocab_size", 23},
                           {"hidden_size", 16},        {"intermediate_size", 24},
                           {"num_hidden_layers", 2},   {"num_attention_heads", 2},
                           {"num_key_value_heads", 1}, {"initializer_range", 0.5}};
  config["sliding_window"] = 4;
  config["max_position_embeddings"] = 32;
  manual_seed(11);
  const auto model = models::make_language_model(config);
  Tokens expected = {3, 7, 1, 9, 2, 5};
  const Tokens tokens = models::generate(*model, expected, {.max_new_tokens = 20});
  const NoGradGuard no_grad;
  while (expected.size() < tokens.size()) {
    const Tensor logits =
        model->forward(Tensor::from(expected, {1, static_cast<std::int64_t>(expected.size())}));
    const auto vocabulary = static_cast<std::size_t>(logits.size(2));
    const float* const last = logits.data_as<float>() + (expected.size() - 1) * vocabulary;
    expected.push_back(std::max_element(last, last + vocabulary) - last);
  }
  EXPECT_EQ(tokens, expected);
  // The window matters: without it the text is another.
  config["sliding_window"] = nullptr;
  manual_seed(11);
  const auto wide = models::make_language_model(config);
  EXPECT_NE(models::generate(*wide, {3, 7, 1, 9, 2, 5}, {.max_new_tokens = 20}), tokens);
}

TEST(Generate, IsRepeatableFromItsSeed) {
  const auto model = counting_model();
  const models::GenerateOptions options{.max_new_tokens = 20,
                                        .sampling = {.temperature = 3.0, .seed = 5}};
  const Tokens first = models::generate(*model, {1}, options);
  EXPECT_EQ(models::generate(*model, {1}, options), first);
  auto other = options;
  other.sampling.seed = 6;
  EXPECT_NE(models::generate(*model, {1}, other), first);
  auto one_of_one = options;
  one_of_one.sampling.top_k = 1;
  EXPECT_EQ(models::generate(*model, {1}, one_of_one),
            models::generate(*model, {1}, {.max_new_tokens = 20}));
}

TEST(Generate, TopKKeepsToTheMostProbable) {
  const auto model = counting_model();
  std::set<std::int64_t> seen;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    seen.insert(models::generate(*model, {3, 4, 5},
                                 {.max_new_tokens = 1,
                                  .sampling = {.temperature = 50, .top_k = 3, .seed = seed}})
                    .back());
  }
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen.contains(6));
}

TEST(Generate, StopsAtTheStopTokenAndReportsEachToken) {
  const auto model = counting_model();
  Tokens told;
  const Tokens tokens = models::generate(*model, {3, 4}, {.max_new_tokens = 9, .stop_tokens = {6}},
                                         [&](std::int64_t token) { told.push_back(token); });
  EXPECT_EQ(tokens, (Tokens{3, 4, 5, 6}));
  EXPECT_EQ(told, (Tokens{5, 6}));
}

TEST(Generate, ANucleusOfOneTokenIsTheMostProbable) {
  const auto model = counting_model();
  const models::GenerateOptions narrow{.max_new_tokens = 20,
                                       .sampling = {.temperature = 3, .top_p = 1e-9, .seed = 5}};
  EXPECT_EQ(models::generate(*model, {1}, narrow),
            models::generate(*model, {1}, {.max_new_tokens = 20}));
}

TEST(Generate, PromptsTogetherGetTheSameTextsAsAlone) {
  const auto model = counting_model();
  const models::GenerateOptions options{
      .max_new_tokens = 12, .sampling = {.temperature = 2, .seed = 3}, .stop_tokens = {9}};
  const std::vector<Tokens> prompts = {
      {1}, {3, 4, 5}, {0, 1, 2, 3, 4, 5, 6, 7}, {2}, {5, 5}, {7}, {8}, {10, 0}, {4, 4, 4}};
  const std::vector<Tokens> together = models::generate_all(*model, prompts, options);
  ASSERT_EQ(together.size(), prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(together[i], models::generate(*model, prompts[i], options)) << i;
  }
}

TEST(Generate, RefusesPromptsItCannotContinue) {
  const auto model = counting_model();
  EXPECT_THROW(models::generate(*model, {}, {}), Error);
  EXPECT_THROW(models::generate(*model, {11}, {}), Error);
  EXPECT_THROW(models::generate(*model, {1}, {.sampling = {.top_p = 0}}), std::logic_error);
  EXPECT_THROW(models::generate(*model, {1}, {.sampling = {.temperature = -1}}), std::logic_error);
}

}  // namespace
}  // namespace tessera

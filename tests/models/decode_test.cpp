// Decoding with a cache gives the logits of forward(), however the tokens are cut into calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/autograd.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

json small_gpt2() {
  return {{"model_type", "gpt2"},
          {"vocab_size", 50},
          {"n_positions", 40},
          {"n_embd", 24},
          {"n_layer", 3},
          {"n_head", 4},
          {"activation_function", "gelu_new"}};
}
json small_llama(const std::string& model_type) {
  return {{"model_type", model_type}, {"vocab_size", 50},
          {"hidden_size", 32},        {"intermediate_size", 48},
          {"num_hidden_layers", 3},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 40}};
}
json small_family(const std::string& model_type, const std::string& key, json value) {
  json config = small_llama(model_type);
  config[key] = std::move(value);
  return config;
}

json small_gemma3() {
  json config = small_family("gemma3_text", "sliding_window", 4);
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  return config;
}

json small_gpt_oss() {
  json config = small_family("gpt_oss", "sliding_window", 4);
  config.update({{"num_local_experts", 5}, {"num_experts_per_tok", 2}, {"head_dim", 8}});
  return config;
}

std::vector<std::int64_t> counted_ids(std::int64_t count, std::int64_t step) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back((3 + i * step) % 50);
  return ids;
}

Tensor tensor_of(const std::vector<std::int64_t>& ids, std::size_t first, std::size_t count) {
  const std::span<const std::int64_t> part = std::span(ids).subspan(first, count);
  return Tensor::from(part, {1, static_cast<std::int64_t>(count)});
}

// The last position's logits, computed by forward().
std::vector<double> expected_logits(models::LanguageModel& model,
                                    const std::vector<std::int64_t>& ids, std::size_t count) {
  const std::vector<double> all = model.forward(tensor_of(ids, 0, count)).to_vector();
  return {all.end() - model.vocabulary(), all.end()};
}

// Products of one row and of many round differently: `tolerance` is relative to the largest logit.
void expect_near(const std::vector<double>& ours, const std::vector<double>& wanted,
                 double tolerance) {
  ASSERT_EQ(ours.size(), wanted.size());
  double largest = 0;
  for (const double logit : wanted) largest = std::max(largest, std::abs(logit));
  tolerance *= largest;
  for (std::size_t i = 0; i < ours.size(); ++i) ASSERT_NEAR(ours[i], wanted[i], tolerance) << i;
}

std::unique_ptr<models::LanguageModel> drawn_model(json config) {
  config["initializer_range"] = 0.3;
  manual_seed(11);
  auto model = models::make_language_model(config);
  model->eval();
  return model;
}

class Decode : public ::testing::TestWithParam<json> {};

TEST_P(Decode, GivesForwardsLogitsHoweverTheTokensAreCut) {
  const testing::OneThread one_thread;
  const NoGradGuard no_grad;
  const auto model = drawn_model(GetParam());
  const std::vector<std::int64_t> ids = counted_ids(30, 7);
  for (const std::vector<std::size_t>& cuts :
       {std::vector<std::size_t>{30}, {20, 1, 1, 1}, {1, 1, 1, 9, 12}, {3, 4, 5}}) {
    models::KeyValueCache cache = model->make_cache(30);
    std::size_t seen = 0;
    for (const std::size_t count : cuts) {
      const Tensor logits =
          model->decode(models::DecodingBatch(tensor_of(ids, seen, count), {&cache}));
      seen += count;
      EXPECT_EQ(cache.length(), static_cast<std::int64_t>(seen));
      EXPECT_EQ(logits.shape(), (Shape{1, 50}));
      expect_near(logits.to_vector(), expected_logits(*model, ids, seen), 1e-5);
    }
  }
}

TEST_P(Decode, SequencesOfOtherLengthsChangeNothing) {
  const testing::OneThread one_thread;
  const NoGradGuard no_grad;
  const auto model = drawn_model(GetParam());
  std::vector<models::KeyValueCache> caches;
  std::vector<models::KeyValueCache*> together;
  std::vector<std::vector<std::int64_t>> sequences;
  for (std::int64_t i = 0; i < 3; ++i) {
    sequences.push_back(counted_ids(5 + 4 * i, 3 + i));
    caches.push_back(model->make_cache(20));
  }
  std::vector<std::int64_t> last;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t before = sequences[i].size() - 1;
    (void)model->decode(models::DecodingBatch(tensor_of(sequences[i], 0, before), {&caches[i]}));
    last.push_back(sequences[i].back());
    together.push_back(&caches[i]);
  }
  const std::vector<double> logits =
      model->decode(models::DecodingBatch(Tensor::from(last, {3, 1}), together)).to_vector();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(i) * 50;
    expect_near({first, first + 50}, expected_logits(*model, sequences[i], sequences[i].size()),
                1e-5);
  }
}

TEST_P(Decode, InBfloat16ItIsAsAccurateAsForward) {
  const testing::OneThread one_thread;
  const NoGradGuard no_grad;
  const auto exact = drawn_model(GetParam());
  const std::vector<std::int64_t> ids = counted_ids(12, 7);
  const std::vector<double> wanted = expected_logits(*exact, ids, ids.size());
  const nn::ParameterDTypeGuard bf16(bfloat16);
  const auto model = drawn_model(GetParam());
  models::KeyValueCache cache = model->make_cache(12);
  (void)model->decode(models::DecodingBatch(tensor_of(ids, 0, 11), {&cache}));
  const std::vector<double> ours =
      model->decode(models::DecodingBatch(tensor_of(ids, 11, 1), {&cache})).to_vector();
  const std::vector<double> plain = expected_logits(*model, ids, ids.size());
  double error = 0;
  double error_of_forward = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    error = std::max(error, std::abs(ours[i] - wanted[i]));
    error_of_forward = std::max(error_of_forward, std::abs(plain[i] - wanted[i]));
  }
  EXPECT_LE(error, 2 * error_of_forward);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Decode,
    ::testing::Values(small_gpt2(), small_llama("llama"), small_llama("mistral"),
                      small_llama("qwen2"), small_family("qwen3", "head_dim", 12),
                      small_llama("olmo2"), small_family("smollm3", "no_rope_layer_interval", 2),
                      small_family("phi3", "partial_rotary_factor", 0.5), small_llama("mixtral"),
                      small_gemma3(), small_family("qwen3_moe", "num_experts", 12),
                      small_gpt_oss()),
    [](const auto& tested) { return tested.param.at("model_type").template get<std::string>(); });

TEST(KeyValueCache, HoldsNoMoreThanItsCapacity) {
  const NoGradGuard no_grad;
  const auto model = drawn_model(small_gpt2());
  models::KeyValueCache cache = model->make_cache(3);
  const std::vector<std::int64_t> ids = counted_ids(4, 1);
  EXPECT_THROW((void)model->decode(models::DecodingBatch(tensor_of(ids, 0, 4), {&cache})),
               std::logic_error);
}

TEST(Decoding, IsMisuseWhileGradientsAreRecorded) {
  const auto model = drawn_model(small_gpt2());
  models::KeyValueCache cache = model->make_cache(3);
  const std::vector<std::int64_t> ids = counted_ids(1, 1);
  EXPECT_THROW((void)model->decode(models::DecodingBatch(tensor_of(ids, 0, 1), {&cache})),
               std::logic_error);
}

}  // namespace
}  // namespace tessera

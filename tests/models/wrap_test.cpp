// Size-based units of whole models: with any minimum, a run gives the bits of one unit without
// sharding.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "models/registry/registry.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::same_bits;
using testing::TrainingCase;
using testing::Trajectory;

nlohmann::json tiny_config(bool llama, bool tied) {
  if (!llama) {
    return {
        {"model_type", "gpt2"}, {"vocab_size", 29}, {"n_positions", 8},           {"n_embd", 12},
        {"n_layer", 2},         {"n_head", 3},      {"tie_word_embeddings", tied}};
  }
  return {{"model_type", "llama"},       {"vocab_size", 29},
          {"hidden_size", 12},           {"intermediate_size", 20},
          {"num_hidden_layers", 2},      {"num_attention_heads", 2},
          {"num_key_value_heads", 1},    {"max_position_embeddings", 8},
          {"tie_word_embeddings", tied}, {"mlp_bias", true}};
}

Trajectory train(const nlohmann::json& config, int world, const ShardingOptions& options) {
  const TrainingCase what{.max_norm = 0.5, .steps = 2};
  return testing::train_ranks(world, options, what,
                              [&](double) { return models::make_language_model(config, "test"); });
}

std::int64_t size_of_model(const nlohmann::json& config) {
  std::int64_t total = 0;
  for (const auto& parameter : models::make_language_model(config, "test")->named_parameters()) {
    total += parameter.shape.elements();
  }
  return total;
}

class SizeBasedWrap : public ::testing::TestWithParam<std::pair<bool, bool>> {};

TEST_P(SizeBasedWrap, AnyMinimumGivesTheBitsOfNoShard) {
  const nlohmann::json config = tiny_config(GetParam().first, GetParam().second);
  const std::int64_t total = size_of_model(config);
  std::map<int, Trajectory> references;
  for (const int world : {1, 2, 3}) {
    references[world] = train(config, world, {.strategy = Strategy::no_shard});
  }
  std::mt19937_64 random(GetParam().first * 2 + GetParam().second);
  for (int round = 0; round < 24; ++round) {
    ShardingOptions options;
    options.strategy = static_cast<Strategy>(random() % 4);
    // Small and large minimums are equally frequent.
    const double power = std::uniform_real_distribution<>(0, 1)(random);
    options.wrap =
        WrapPolicy::size(static_cast<std::int64_t>(std::pow(static_cast<double>(total), power)));
    options.forward_prefetch = random() % 2 == 0;
    const int world = 1 + static_cast<int>(random() % 3);
    SCOPED_TRACE(testing::describe(options) + ", at least " +
                 std::to_string(options.wrap.min_parameters) + " parameters, " +
                 std::to_string(world) + " ranks");
    ASSERT_NO_THROW(EXPECT_TRUE(same_bits(references[world], train(config, world, options))));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SizeBasedWrap,
                         ::testing::Values(std::pair{false, true}, std::pair{false, false},
                                           std::pair{true, true}, std::pair{true, false}),
                         [](const auto& tested) {
                           return std::string(tested.param.first ? "Llama" : "Gpt2") +
                                  (tested.param.second ? "Tied" : "Untied");
                         });

}  // namespace
}  // namespace tessera

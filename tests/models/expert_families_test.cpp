// Mixtral and Qwen3-MoE: Hugging Face's names, shapes and keys, layers without experts, the
// load-balancing loss, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/model_testing.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

json with_changes(json config, const json& changes) {
  config.update(changes);
  return config;
}
json mixtral_config(const json& changes = json::object()) {
  return with_changes({{"model_type", "mixtral"},
                       {"vocab_size", 11},
                       {"hidden_size", 8},
                       {"intermediate_size", 12},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"max_position_embeddings", 16},
                       {"num_local_experts", 3}},
                      changes);
}
json qwen3_moe_config(const json& changes = json::object()) {
  return with_changes({{"model_type", "qwen3_moe"},
                       {"vocab_size", 11},
                       {"hidden_size", 8},
                       {"intermediate_size", 12},
                       {"moe_intermediate_size", 6},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"head_dim", 4},
                       {"max_position_embeddings", 16},
                       {"num_experts", 4},
                       {"num_experts_per_tok", 2}},
                      changes);
}

std::vector<std::string> lines_of(const json& config, const std::string& prefix) {
  const DeviceGuard meta(Device::meta());
  std::vector<std::string> lines;
  for (const std::string& line : testing::names_and_shapes(*models::make_language_model(config))) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

TEST(Mixtral, HasItsNames) {
  EXPECT_EQ(
      lines_of(mixtral_config({{"num_local_experts", 2}}), "model.layers.0."),
      (std::vector<std::string>{
          "input_layernorm.weight [8]", "self_attn.q_proj.weight [8, 8]",
          "self_attn.k_proj.weight [4, 8]", "self_attn.v_proj.weight [4, 8]",
          "self_attn.o_proj.weight [8, 8]", "post_attention_layernorm.weight [8]",
          "block_sparse_moe.gate.weight [2, 8]", "block_sparse_moe.experts.0.w1.weight [12, 8]",
          "block_sparse_moe.experts.0.w3.weight [12, 8]",
          "block_sparse_moe.experts.0.w2.weight [8, 12]",
          "block_sparse_moe.experts.1.w1.weight [12, 8]",
          "block_sparse_moe.experts.1.w3.weight [12, 8]",
          "block_sparse_moe.experts.1.w2.weight [8, 12]"}));
}

TEST(Qwen3Moe, HasItsNamesAndNormsOfHeads) {
  EXPECT_EQ(lines_of(qwen3_moe_config({{"num_experts", 2}}), "model.layers.0."),
            (std::vector<std::string>{
                "input_layernorm.weight [8]", "self_attn.q_proj.weight [16, 8]",
                "self_attn.k_proj.weight [8, 8]", "self_attn.v_proj.weight [8, 8]",
                "self_attn.o_proj.weight [8, 16]", "self_attn.q_norm.weight [4]",
                "self_attn.k_norm.weight [4]", "post_attention_layernorm.weight [8]",
                "mlp.gate.weight [2, 8]", "mlp.experts.0.gate_proj.weight [6, 8]",
                "mlp.experts.0.up_proj.weight [6, 8]", "mlp.experts.0.down_proj.weight [8, 6]",
                "mlp.experts.1.gate_proj.weight [6, 8]", "mlp.experts.1.up_proj.weight [6, 8]",
                "mlp.experts.1.down_proj.weight [8, 6]"}));
}

// Layers count from 0; with a step of 2, those of odd number have experts.
TEST(Qwen3Moe, SomeLayersHaveNoExperts) {
  const auto with_experts = [](const json& changes) {
    std::vector<int> layers;
    for (int layer = 0; layer < 4; ++layer) {
      const json config = qwen3_moe_config(with_changes({{"num_hidden_layers", 4}}, changes));
      const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
      const auto lines = lines_of(config, mlp);
      if (lines.front() == "gate.weight [4, 8]") {
        layers.push_back(layer);
      } else {
        EXPECT_EQ(lines,
                  (std::vector<std::string>{"gate_proj.weight [12, 8]", "up_proj.weight [12, 8]",
                                            "down_proj.weight [8, 12]"}));
      }
    }
    return layers;
  };
  EXPECT_EQ(with_experts(json::object()), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(with_experts({{"decoder_sparse_step", 2}}), (std::vector<int>{1, 3}));
  EXPECT_EQ(with_experts({{"mlp_only_layers", {0, 2, 9}}}), (std::vector<int>{1, 3}));
  EXPECT_EQ(with_experts({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}}),
            (std::vector<int>{1}));
}

// The published sizes: Mixtral-8x7B, and Qwen3-30B-A3B.
TEST(ExpertFamilies, HaveTheKnownNumbersOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto count = [](const json& config) {
    return testing::parameter_count(*models::make_language_model(config));
  };
  EXPECT_EQ(count({{"model_type", "mixtral"}}), 46'702'792'704);
  EXPECT_EQ(count({{"model_type", "qwen3_moe"},
                   {"num_hidden_layers", 48},
                   {"head_dim", 128},
                   {"norm_topk_prob", true}}),
            30'532'122'624);
}

TEST(ExpertFamilies, ConfigurationsAreReadAndWritten) {
  const DeviceGuard meta(Device::meta());
  for (const json& config : {mixtral_config(),
                             mixtral_config({{"sliding_window", 7},
                                             {"num_experts_per_tok", 1},
                                             {"output_router_logits", true},
                                             {"router_aux_loss_coef", 0.02},
                                             {"router_jitter_noise", 0.0}}),
                             qwen3_moe_config(),
                             qwen3_moe_config({{"norm_topk_prob", true},
                                               {"decoder_sparse_step", 2},
                                               {"num_hidden_layers", 3},
                                               {"mlp_only_layers", {1}},
                                               {"attention_bias", true},
                                               {"tie_word_embeddings", true}})}) {
    const auto model = models::make_language_model(config);
    const json written = model->config(bfloat16);
    for (const auto& [key, value] : config.items()) EXPECT_EQ(written.at(key), value) << key;
    const auto again = models::make_language_model(written);
    EXPECT_EQ(again->config(bfloat16), written);
    EXPECT_EQ(testing::names_and_shapes(*again), testing::names_and_shapes(*model));
  }
}

// Newer versions of transformers write `num_local_experts` for Qwen3-MoE; all read `num_experts`.
TEST(Qwen3Moe, TheNumberOfExpertsStandsInBothSpellings) {
  const DeviceGuard meta(Device::meta());
  json config = qwen3_moe_config();
  config.erase("num_experts");
  config["num_local_experts"] = 4;
  const auto model = models::make_language_model(config);
  EXPECT_EQ(model->config(), models::make_language_model(qwen3_moe_config())->config());
  EXPECT_FALSE(model->config().contains("num_local_experts"));
  config["num_experts"] = 4;
  EXPECT_EQ(models::make_language_model(config)->config(), model->config());
}

TEST(ExpertFamilies, LayersAreNamedForWrapPolicies) {
  const DeviceGuard meta(Device::meta());
  for (const auto& [config, layer] :
       {std::pair{mixtral_config({{"num_hidden_layers", 3}}), "MixtralDecoderLayer"},
        {qwen3_moe_config({{"num_hidden_layers", 3}, {"decoder_sparse_step", 2}}),
         "Qwen3MoeDecoderLayer"}}) {
    const auto model = models::make_language_model(config);
    EXPECT_EQ(model->layer_class(), layer);
    int found = 0;
    for (const auto& [name, module] : model->named_modules()) {
      found += module->class_name() == layer ? 1 : 0;
    }
    EXPECT_EQ(found, 3) << layer;
  }
}

const json balanced = {
    {"output_router_logits", true}, {"router_aux_loss_coef", 0.1}, {"num_hidden_layers", 2}};

TEST(ExpertFamilies, GradientsAgreeWithDifferences) {
  testing::check_model_gradients(mixtral_config(balanced));
  testing::check_model_gradients(qwen3_moe_config(balanced));
  testing::check_model_gradients(qwen3_moe_config(
      {{"norm_topk_prob", true}, {"num_hidden_layers", 2}, {"mlp_only_layers", {0}}}));
}

TEST(ExpertFamilies, LossStartsNearTheUniformDistributionsAndFalls) {
  for (const json& config : {mixtral_config(), qwen3_moe_config()}) {
    manual_seed(1);
    const auto model = models::make_language_model(config);
    const auto [first, last] = testing::losses_of_training(*model, 30);
    EXPECT_NEAR(first, std::log(11.0), 0.1) << config["model_type"];
    EXPECT_LT(last, 0.6 * first) << config["model_type"];
  }
}

// Weights near zero leave the experts in nearly equal use of probabilities: the loss is the
// coefficient times the experts of a token.
TEST(ExpertFamilies, TheLossContainsTheLoadBalancingLossIfItIsAskedFor) {
  const testing::OneThread one_thread;
  const auto loss_of = [](json config, double coefficient, bool asked) {
    manual_seed(4);
    config["output_router_logits"] = asked;
    config["router_aux_loss_coef"] = coefficient;
    config["initializer_range"] = 1e-3;
    const auto model = models::make_language_model(config);
    const auto batch = testing::counting_batch(2, 8, model->vocabulary());
    return model->loss(batch.ids, batch.targets).item();
  };
  for (const json& config : {mixtral_config(), qwen3_moe_config({{"num_hidden_layers", 2}})}) {
    const double plain = loss_of(config, 5, false);
    EXPECT_EQ(loss_of(config, 0, true), plain);
    EXPECT_NEAR(loss_of(config, 5, true) - plain, 5 * 2, 0.1) << config["model_type"];
  }
}

TEST(ExpertFamilies, RefuseByName) {
  const auto expect = [](const json& config, const std::string& part) {
    const DeviceGuard meta(Device::meta());
    const std::string message =
        testing::error_of([&] { (void)models::make_language_model(config, "folder/config.json"); },
                          ErrorCode::configuration);
    EXPECT_EQ(message.find("folder/config.json: "), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  };
  expect(mixtral_config({{"num_experts_per_tok", 4}}),
         "num_experts_per_tok = 4 is more than num_local_experts = 3");
  expect(qwen3_moe_config({{"num_experts_per_tok", 5}}),
         "num_experts_per_tok = 5 is more than num_experts = 4");
  expect(mixtral_config({{"num_local_experts", 0}}), "num_local_experts is 0");
  expect(mixtral_config({{"num_local_experts", 100'000}}), "num_local_experts is 100000");
  expect(mixtral_config({{"router_jitter_noise", 0.1}}),
         "router_jitter_noise = 0.1 is not supported");
  expect(mixtral_config({{"num_experts", 5}}), "num_experts = 5 is not supported");
  expect(mixtral_config({{"n_routed_experts", 3}}), "n_routed_experts = 3 is not supported");
  expect(mixtral_config({{"router_aux_loss_coef", -1}}), "router_aux_loss_coef is -1");
  expect(qwen3_moe_config({{"num_local_experts", 5}}), "num_local_experts = 5 is not supported");
  expect(qwen3_moe_config({{"mlp_only_layers", 3}}), "mlp_only_layers is 3; it must be a list");
  expect(qwen3_moe_config({{"mlp_only_layers", {"a"}}}), "mlp_only_layers has \"a\"");
  expect(qwen3_moe_config({{"decoder_sparse_step", 0}}), "decoder_sparse_step is 0");
  expect(qwen3_moe_config({{"mlp_only_layers", {0}}, {"output_router_logits", true}}),
         "output_router_logits = true, but no layer of the model has experts");
  expect(qwen3_moe_config({{"use_sliding_window", true}}), "use_sliding_window = true");
}

}  // namespace
}  // namespace tessera

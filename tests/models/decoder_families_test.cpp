// The models of Llama's build: Hugging Face's names and shapes, what each computes in addition, and
// what is refused.
#include "models/llama/decoder_families_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/model_testing.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

json family_config(const std::string& model_type) {
  return {{"model_type", model_type}, {"vocab_size", 11},       {"hidden_size", 8},
          {"intermediate_size", 12},  {"num_hidden_layers", 1}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"head_dim", 4},          {"max_position_embeddings", 16}};
}
json changed(json config, const json& changes) {
  config.update(changes);
  return config;
}

// The lines of the first layer, without "model.layers.0.".
std::vector<std::string> lines_of_layer(const json& config) {
  const DeviceGuard meta(Device::meta());
  const std::string prefix = "model.layers.0.";
  std::vector<std::string> lines;
  for (const std::string& line : testing::names_and_shapes(*models::make_language_model(config))) {
    if (line.starts_with(prefix)) lines.push_back(line.substr(prefix.size()));
  }
  return lines;
}

bool has_line(const std::vector<std::string>& lines, const std::string& line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

std::string refusal_of_family(const json& config) {
  const DeviceGuard meta(Device::meta());
  return testing::error_of([&] { (void)models::make_language_model(config, "folder/config.json"); },
                           ErrorCode::configuration);
}

TEST(Qwen3, NormsEachHeadsQueriesAndKeys) {
  EXPECT_EQ(lines_of_layer(family_config("qwen3")),
            (std::vector<std::string>{
                "input_layernorm.weight [8]", "self_attn.q_proj.weight [16, 8]",
                "self_attn.k_proj.weight [8, 8]", "self_attn.v_proj.weight [8, 8]",
                "self_attn.o_proj.weight [8, 16]", "self_attn.q_norm.weight [4]",
                "self_attn.k_norm.weight [4]", "post_attention_layernorm.weight [8]",
                "mlp.gate_proj.weight [12, 8]", "mlp.up_proj.weight [12, 8]",
                "mlp.down_proj.weight [8, 12]"}));
  const auto biased = lines_of_layer(changed(family_config("qwen3"), {{"attention_bias", true}}));
  EXPECT_TRUE(has_line(biased, "self_attn.q_proj.bias [16]"));
  EXPECT_TRUE(has_line(biased, "self_attn.o_proj.bias [8]"));
}

TEST(Qwen3, AnAbsentHeadSizeIs128WhateverTheWidth) {
  json config = family_config("qwen3");
  config.erase("head_dim");
  config["hidden_size"] = 10;  // not a multiple of the heads
  EXPECT_TRUE(has_line(lines_of_layer(config), "self_attn.q_norm.weight [128]"));
}

json gemma3_config() {
  return changed(family_config("gemma3_text"),
                 {{"num_hidden_layers", 2},
                  {"sliding_window", 3},
                  {"layer_types", {"sliding_attention", "full_attention"}}});
}

TEST(Gemma3, NormsTheInputsAndTheOutputsOfItsParts) {
  EXPECT_EQ(lines_of_layer(family_config("gemma3_text")),
            (std::vector<std::string>{
                "self_attn.q_proj.weight [16, 8]", "self_attn.k_proj.weight [8, 8]",
                "self_attn.v_proj.weight [8, 8]", "self_attn.o_proj.weight [8, 16]",
                "self_attn.q_norm.weight [4]", "self_attn.k_norm.weight [4]",
                "mlp.gate_proj.weight [12, 8]", "mlp.up_proj.weight [12, 8]",
                "mlp.down_proj.weight [8, 12]", "input_layernorm.weight [8]",
                "post_attention_layernorm.weight [8]", "pre_feedforward_layernorm.weight [8]",
                "post_feedforward_layernorm.weight [8]"}));
}

// A weight of zero is a factor of one.
TEST(Gemma3, NewNormsHaveZeros) {
  const auto model = models::make_language_model(gemma3_config());
  for (const auto& parameter : model->named_parameters()) {
    if (parameter.name.find("norm") == std::string::npos) continue;
    EXPECT_EQ(parameter.tensor.to_vector(),
              std::vector<double>(static_cast<std::size_t>(parameter.shape.elements()), 0.0));
  }
}

TEST(Gemma3, RefusesWhatItDoesNotCompute) {
  const auto refusal = [](const json& changes) {
    return refusal_of_family(changed(gemma3_config(), changes));
  };
  EXPECT_NE(refusal({{"final_logit_softcapping", 30.0}}).find("final_logit_softcapping"),
            std::string::npos);
  EXPECT_NE(refusal({{"use_bidirectional_attention", true}}).find("use_bidirectional_attention"),
            std::string::npos);
  EXPECT_NE(refusal({{"layer_types", {"full_attention"}}}).find("for each of 2 layers"),
            std::string::npos);
  EXPECT_NE(refusal({{"layer_types", {"full_attention", "chunked_attention"}}})
                .find("has \"chunked_attention\""),
            std::string::npos);
  EXPECT_NE(refusal({{"rope_parameters",
                      {{"full_attention", {{"rope_theta", 1e4}}},
                       {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}}})
                .find("has the rope_type \"linear\" for sliding_attention"),
            std::string::npos);
  EXPECT_NE(refusal({{"hidden_activation", "silu"}}).find("hidden_activation"), std::string::npos);
}

TEST(Olmo2, NormsProjectionsAndTheOutputsOfItsParts) {
  EXPECT_EQ(lines_of_layer(family_config("olmo2")),
            (std::vector<std::string>{
                "self_attn.q_proj.weight [16, 8]", "self_attn.k_proj.weight [8, 8]",
                "self_attn.v_proj.weight [8, 8]", "self_attn.o_proj.weight [8, 16]",
                "self_attn.q_norm.weight [16]", "self_attn.k_norm.weight [8]",
                "mlp.gate_proj.weight [12, 8]", "mlp.up_proj.weight [12, 8]",
                "mlp.down_proj.weight [8, 12]", "post_attention_layernorm.weight [8]",
                "post_feedforward_layernorm.weight [8]"}));
}

TEST(Phi3, FusesItsProjections) {
  EXPECT_EQ(lines_of_layer(family_config("phi3")),
            (std::vector<std::string>{
                "input_layernorm.weight [8]", "self_attn.qkv_proj.weight [32, 8]",
                "self_attn.o_proj.weight [8, 16]", "post_attention_layernorm.weight [8]",
                "mlp.gate_up_proj.weight [24, 8]", "mlp.down_proj.weight [8, 12]"}));
}

TEST(SmolLM3, HasLlamasNamesAndATiedHead) {
  EXPECT_EQ(lines_of_layer(family_config("smollm3")), lines_of_layer(family_config("llama")));
  const DeviceGuard meta(Device::meta());
  const auto model = models::make_language_model(family_config("smollm3"));
  EXPECT_EQ(testing::names_and_shapes(*model).back(), "model.norm.weight [8]");
}

// The published sizes, as transformers counts them.
TEST(DecoderFamilies, HaveTheKnownNumbersOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto count = [](const json& config) {
    return testing::parameter_count(*models::make_language_model(config));
  };
  EXPECT_EQ(count({{"model_type", "qwen3"},
                   {"hidden_size", 1024},
                   {"intermediate_size", 3072},
                   {"num_hidden_layers", 28},
                   {"num_attention_heads", 16},
                   {"num_key_value_heads", 8},
                   {"tie_word_embeddings", true}}),
            596'049'920);
  EXPECT_EQ(count({{"model_type", "olmo2"},
                   {"vocab_size", 100352},
                   {"hidden_size", 2048},
                   {"intermediate_size", 8192},
                   {"num_hidden_layers", 16},
                   {"num_attention_heads", 16}}),
            1'484'916'736);
  EXPECT_EQ(count({{"model_type", "smollm3"}}), 3'075'098'624);
  EXPECT_EQ(count({{"model_type", "phi3"}}), 3'821'079'552);
}

TEST(DecoderFamilies, LayersAreNamedForWrapPolicies) {
  const DeviceGuard meta(Device::meta());
  for (const auto& [type, layer] : {std::pair{"qwen3", "Qwen3DecoderLayer"},
                                    {"olmo2", "Olmo2DecoderLayer"},
                                    {"smollm3", "SmolLM3DecoderLayer"},
                                    {"phi3", "Phi3DecoderLayer"}}) {
    const auto model =
        models::make_language_model(changed(family_config(type), {{"num_hidden_layers", 3}}));
    EXPECT_EQ(model->layer_class(), layer);
    int found = 0;
    for (const auto& [name, module] : model->named_modules()) {
      found += module->class_name() == layer ? 1 : 0;
    }
    EXPECT_EQ(found, 3) << type;
  }
}

TEST(DecoderFamilies, GradientsAgreeWithDifferences) {
  const json two = {{"num_hidden_layers", 2}};
  testing::check_model_gradients(changed(family_config("qwen3"), two));
  testing::check_model_gradients(changed(family_config("olmo2"), two));
  testing::check_model_gradients(
      changed(family_config("smollm3"), {{"no_rope_layer_interval", 1}}));
  testing::check_model_gradients(
      changed(family_config("phi3"), {{"partial_rotary_factor", 0.5}, {"resid_pdrop", 0.3}}));
  testing::check_model_gradients(changed(
      family_config("qwen3"), {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}}));
}

TEST(DecoderFamilies, LossStartsNearTheUniformDistributionsAndFalls) {
  for (const char* type : {"qwen3", "olmo2", "smollm3", "phi3"}) {
    manual_seed(1);
    const auto model = models::make_language_model(family_config(type));
    const auto [first, last] = testing::losses_of_training(*model, 30);
    EXPECT_NEAR(first, std::log(11.0), 0.1) << type;
    EXPECT_LT(last, 0.5 * first) << type;
  }
}

// Without positions, attention to other tokens is a sum over a set: their order does not count.
TEST(SmolLM3, ALayerWithoutPositionsDoesNotSeeTheOrderOfEarlierTokens) {
  const testing::OneThread one_thread;
  const auto last_logit = [](const json& changes, const std::vector<std::int32_t>& ids) {
    manual_seed(3);
    const auto model = models::make_language_model(
        changed(family_config("smollm3"), changed({{"initializer_range", 0.5}}, changes)));
    return model->forward(Tensor::from(ids, {1, 4})).to_vector().back();
  };
  const auto change = [&](const json& changes) {
    return std::abs(last_logit(changes, {1, 2, 3, 4}) - last_logit(changes, {3, 1, 2, 4}));
  };
  EXPECT_LT(change({{"no_rope_layer_interval", 1}}), 1e-5);
  EXPECT_GT(change({{"no_rope_layer_interval", 4}}), 1e-3);
  EXPECT_LT(change({{"no_rope_layers", {0}}}), 1e-5);
  EXPECT_GT(change({{"no_rope_layers", {1}}, {"no_rope_layer_interval", 1}}), 1e-3);
}

TEST(SmolLM3, KeepsTheListOfItsLayers) {
  const DeviceGuard meta(Device::meta());
  const json config = changed(family_config("smollm3"), {{"no_rope_layers", {0, 1}}});
  const auto model = models::make_language_model(config);
  EXPECT_EQ(model->config()["no_rope_layers"], config["no_rope_layers"]);
}

TEST(Phi3, TheRotatedPartStandsInBothSpellings) {
  const DeviceGuard meta(Device::meta());
  const json older = changed(family_config("phi3"), {{"partial_rotary_factor", 0.5}});
  const json newer = changed(
      family_config("phi3"),
      {{"rope_parameters",
        {{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.5}}}});
  const json written = models::make_language_model(older)->config();
  EXPECT_EQ(written["partial_rotary_factor"], 0.5);
  EXPECT_TRUE(written["rope_scaling"].is_null());
  EXPECT_EQ(models::make_language_model(newer)->config(), written);
}

TEST(Phi3, ASlidingWindowLeavesItsPositions) {
  const DeviceGuard meta(Device::meta());
  const json config = family_config("phi3");
  EXPECT_EQ(models::make_language_model(config)->positions(), 16);
  EXPECT_EQ(models::make_language_model(changed(config, {{"sliding_window", 5}}))->positions(), 16);
}

// transformers' defaults for special tokens may lie outside a small vocabulary.
TEST(DecoderFamilies, WriteNoSpecialTokensThatTheyDoNotHave) {
  const DeviceGuard meta(Device::meta());
  const json written = models::make_language_model(family_config("phi3"))->config();
  EXPECT_TRUE(written["pad_token_id"].is_null() && written["eos_token_id"].is_null());
  const json kept = changed(family_config("phi3"), {{"pad_token_id", 3}});
  EXPECT_EQ(models::make_language_model(kept)->config()["pad_token_id"], 3);
}

TEST(DecoderFamilies, RefuseByName) {
  const auto expect = [](const std::string& type, const json& changes, const std::string& part) {
    const std::string message = refusal_of_family(changed(family_config(type), changes));
    EXPECT_EQ(message.find("folder/config.json: "), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  };
  for (const char* type : {"qwen2", "qwen3", "olmo2", "smollm3", "phi3"}) {
    expect(type, {{"use_sliding_window", true}}, "use_sliding_window = true is not supported");
    expect(type, {{"layer_types", {"full_attention", "sliding_attention"}}},
           "layer_types has \"sliding_attention\"");
    expect(type, {{"num_experts", 8}}, "num_experts = 8 is not supported");
    expect(type, {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}},
           "rope_scaling.rope_type is \"dynamic\"");
  }
  for (const char* type : {"mistral", "qwen3", "olmo2", "phi3"}) {
    expect(type, {{"mlp_bias", true}}, "mlp_bias = true is not supported");
  }
  expect("phi3", {{"attention_bias", true}}, "attention_bias = true is not supported");
  expect("qwen3", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor = 0.5 is not supported");
  expect("phi3", {{"partial_rotary_factor", 0.3}}, "partial_rotary_factor = 0.3 leaves 1 of 4");
  expect("phi3", {{"partial_rotary_factor", 1.5}}, "partial_rotary_factor is 1.5");
  expect("phi3", {{"rope_scaling", {{"type", "longrope"}, {"short_factor", {1, 1}}}}},
         "rope_scaling.rope_type is \"longrope\"");
  expect("smollm3", {{"no_rope_layers", {2}}}, "no_rope_layers has 2");
  expect("smollm3", {{"no_rope_layers", json::array()}}, "no_rope_layers must be a list");
  expect("smollm3", {{"no_rope_layer_interval", 0}}, "no_rope_layer_interval is 0");
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4}};
  expect("qwen2", {{"rope_scaling", changed(yarn, {{"beta_fast", 0.5}})}},
         "rope_scaling.beta_fast = 0.5 is below beta_slow = 1");
  expect("qwen2", {{"rope_scaling", yarn}, {"rope_theta", 1}}, "rope_theta = 1 is not above 1");
}

}  // namespace
}  // namespace tessera

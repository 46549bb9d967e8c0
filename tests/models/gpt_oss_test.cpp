// gpt-oss: Hugging Face's names, shapes and keys, its own scaling of rotary positions, windows, and
// what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/tensor_ops.h"
#include "models/mixture_of_experts.h"
#include "models/model_testing.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

json gpt_oss_config(const json& changes = json::object()) {
  json config = {
      {"model_type", "gpt_oss"},  {"vocab_size", 11},       {"hidden_size", 8},
      {"intermediate_size", 6},   {"num_hidden_layers", 2}, {"num_attention_heads", 4},
      {"num_key_value_heads", 2}, {"head_dim", 4},          {"max_position_embeddings", 16},
      {"sliding_window", 3},      {"num_local_experts", 3}, {"num_experts_per_tok", 2}};
  config.update(changes);
  return config;
}

TEST(GptOss, HasItsNames) {
  const DeviceGuard meta(Device::meta());
  const std::string layer = "model.layers.0.";
  std::vector<std::string> lines;
  for (const auto& line :
       testing::names_and_shapes(*models::make_language_model(gpt_oss_config()))) {
    if (line.starts_with(layer)) lines.push_back(line.substr(layer.size()));
  }
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "input_layernorm.weight [8]", "self_attn.sinks [4]",
                       "self_attn.q_proj.weight [16, 8]", "self_attn.q_proj.bias [16]",
                       "self_attn.k_proj.weight [8, 8]", "self_attn.k_proj.bias [8]",
                       "self_attn.v_proj.weight [8, 8]", "self_attn.v_proj.bias [8]",
                       "self_attn.o_proj.weight [8, 16]", "self_attn.o_proj.bias [8]",
                       "post_attention_layernorm.weight [8]", "mlp.router.weight [3, 8]",
                       "mlp.router.bias [3]", "mlp.experts.gate_up_proj [3, 8, 12]",
                       "mlp.experts.gate_up_proj_bias [3, 12]", "mlp.experts.down_proj [3, 6, 8]",
                       "mlp.experts.down_proj_bias [3, 8]"}));
}

// The published sizes: gpt-oss-20b and gpt-oss-120b.
TEST(GptOss, HasTheKnownNumbersOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto count = [](const json& config) {
    return testing::parameter_count(*models::make_language_model(config));
  };
  EXPECT_EQ(
      count({{"model_type", "gpt_oss"}, {"num_hidden_layers", 24}, {"num_local_experts", 32}}),
      20'914'757'184);
  EXPECT_EQ(count({{"model_type", "gpt_oss"}}), 116'829'156'672);
}

TEST(GptOss, ConfigurationsAreReadAndWritten) {
  const DeviceGuard meta(Device::meta());
  const json yarn = {
      {"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 4}};
  for (const json& config :
       {gpt_oss_config(), gpt_oss_config({{"rope_scaling", yarn}, {"rope_theta", 700.0}}),
        gpt_oss_config({{"layer_types", {"full_attention", "sliding_attention"}},
                        {"attention_bias", false},
                        {"swiglu_limit", 2.5},
                        {"swiglu_alpha", 1.0},
                        {"experts_per_token", 2},
                        {"tie_word_embeddings", true}})}) {
    const auto model = models::make_language_model(config);
    const json written = model->config(bfloat16);
    for (const auto& [key, value] : config.items()) EXPECT_EQ(written.at(key), value) << key;
    EXPECT_EQ(models::make_language_model(written)->config(bfloat16), written);
  }
}

// A scaling that is given has transformers' defaults, not a part of gpt-oss's own. Where
// transformers takes YaRN by itself, the absence of a scaling has to be written.
TEST(GptOss, ItsScalingIsWrittenAndSoIsNone) {
  const DeviceGuard meta(Device::meta());
  const auto written = [](const json& changes) {
    return models::make_language_model(gpt_oss_config(changes))->config().at("rope_scaling");
  };
  const json own = {{"rope_type", "yarn"}, {"factor", 32.0},
                    {"beta_fast", 32.0},   {"beta_slow", 1.0},
                    {"truncate", false},   {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(written(json::object()), own);
  EXPECT_EQ(written({{"rope_scaling", nullptr}}), own);
  const json none = {{"rope_type", "default"}};
  EXPECT_EQ(written({{"rope_scaling", none}}), none);
  EXPECT_EQ(written({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5.0}}}}), none);
}

TEST(GptOss, EveryOtherLayerHasTheWindow) {
  const DeviceGuard meta(Device::meta());
  const json config =
      models::make_language_model(gpt_oss_config({{"num_hidden_layers", 3}}))->config();
  EXPECT_EQ(config.at("layer_types"),
            (json{"sliding_attention", "full_attention", "sliding_attention"}));
}

TEST(GptOss, GradientsAgreeWithDifferences) {
  testing::check_model_gradients(gpt_oss_config(
      {{"output_router_logits", true}, {"router_aux_loss_coef", 0.1}, {"swiglu_limit", 0.05}}));
}

TEST(GptOss, LossStartsNearTheUniformDistributionsAndFalls) {
  manual_seed(1);
  const auto model = models::make_language_model(gpt_oss_config());
  const auto [first, last] = testing::losses_of_training(*model, 30);
  EXPECT_NEAR(first, std::log(11.0), 0.1);
  EXPECT_LT(last, 0.6 * first);
}

TEST(GptOss, RefusesByName) {
  const auto expect = [](const json& changes, const std::string& part) {
    const DeviceGuard meta(Device::meta());
    const std::string message = testing::error_of(
        [&] { (void)models::make_language_model(gpt_oss_config(changes), "folder/config.json"); },
        ErrorCode::configuration);
    EXPECT_EQ(message.find("folder/config.json: "), 0u) << message;
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  };
  expect({{"experts_per_token", 3}}, "experts_per_token = 3 is not supported; use 2");
  expect({{"num_experts_per_tok", 4}},
         "num_experts_per_tok = 4 is more than num_local_experts = 3");
  expect({{"swiglu_limit", 0}}, "swiglu_limit is 0");
  expect({{"swiglu_alpha", -1}}, "swiglu_alpha is -1");
  expect({{"hidden_act", "gelu"}}, "hidden_act is \"gelu\"");
  expect({{"layer_types", {"full_attention"}}}, "layer_types must be a list");
  expect({{"layer_types", {"full_attention", "chunked_attention"}}},
         "layer_types has \"chunked_attention\"");
  expect({{"sliding_window", 0}}, "sliding_window is 0");
  expect({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}},
         "rope_scaling.rope_type is \"llama3\"");
  expect({{"rope_scaling", {{"factor", 8.0}}}}, "rope_scaling.rope_type is missing");
  expect({{"mlp_only_layers", {0}}}, "mlp_only_layers is not supported by this model");
  expect({{"use_sliding_window", true}}, "use_sliding_window = true");
  expect({{"mlp_bias", true}}, "mlp_bias = true");
}

// Keys of gpt-oss in another model would change nothing there.
TEST(GptOss, ItsKeysAreRefusedElsewhere) {
  const DeviceGuard meta(Device::meta());
  const std::string message = testing::error_of(
      [] {
        (void)models::make_language_model(json{{"model_type", "mixtral"}, {"swiglu_limit", 7.0}},
                                          "config.json");
      },
      ErrorCode::configuration);
  EXPECT_NE(message.find("swiglu_limit is not supported"), std::string::npos) << message;
}

}  // namespace
}  // namespace tessera

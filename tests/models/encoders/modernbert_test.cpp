// ModernBERT: Hugging Face's names and shapes, the kinds of its layers, refusals.
#include "models/modernbert/modernbert.h"

#include <gtest/gtest.h>

#include "models/encoder_testing.h"
#include "models/model_testing.h"
#include "support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(ModernBert, HasHuggingFaceNamesAndShapes) {
  const auto model = models::make_text_encoder(testing::tiny_encoder("modernbert"), "test");
  const std::vector<std::string> wanted = {
      "embeddings.tok_embeddings.weight [29, 12]",
      "embeddings.norm.weight [12]",
      "layers.0.attn.Wqkv.weight [36, 12]",
      "layers.0.attn.Wo.weight [12, 12]",
      "layers.0.mlp_norm.weight [12]",
      "layers.0.mlp.Wi.weight [40, 12]",
      "layers.0.mlp.Wo.weight [12, 20]",
      "layers.1.attn_norm.weight [12]",
      "layers.1.attn.Wqkv.weight [36, 12]",
      "layers.1.attn.Wo.weight [12, 12]",
      "layers.1.mlp_norm.weight [12]",
      "layers.1.mlp.Wi.weight [40, 12]",
      "layers.1.mlp.Wo.weight [12, 20]",
      "final_norm.weight [12]",
  };
  EXPECT_EQ(testing::names_and_shapes(*model), wanted);
  EXPECT_EQ(model->positions(), 16);
}

// transformers' count of ModernBERT-base.
TEST(ModernBert, HasTheKnownNumberOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto base = models::make_text_encoder({{"model_type", "modernbert"}}, "test");
  EXPECT_EQ(testing::parameter_count(*base), 149'014'272);
}

// A token outside the window changes a state through layers that see all tokens only.
TEST(ModernBert, LayersWithAWindowSeeItAlone) {
  json config = testing::tiny_encoder("modernbert");
  config["layer_types"] = {"sliding_attention", "sliding_attention"};
  manual_seed(5);
  const auto model = models::make_text_encoder(config, "test");
  model->eval();
  models::TokenBatch batch = testing::encoder_batch({16}, 16);
  const Tensor before = model->forward(batch);
  batch.ids.data_as<std::int32_t>()[0] = 28;
  const Tensor after = model->forward(batch);
  // Two layers reach two tokens each.
  const auto row = [](const Tensor& states, std::int64_t t) {
    return testing::of_sequence(reshape(states, Shape{16, 1, 12}), t);
  };
  for (std::int64_t t = 0; t < 16; ++t) EXPECT_EQ(row(before, t) == row(after, t), t > 4) << t;
}

// transformers' default of the padding token, 50283, may lie outside the vocabulary, which it
// refuses.
TEST(ModernBert, AConfigurationWithoutAPaddingTokenSaysSo) {
  json config = testing::tiny_encoder("modernbert");
  const auto written = [&] { return models::make_text_encoder(config, "test")->config(); };
  config.erase("pad_token_id");
  EXPECT_EQ(written().at("pad_token_id"), nullptr);
  config["pad_token_id"] = 3;
  EXPECT_EQ(written().at("pad_token_id"), 3);
}

TEST(ModernBert, RefusesOtherConfigurations) {
  const auto refused = [](const char* key, const json& value) {
    json config = testing::tiny_encoder("modernbert");
    config[key] = value;
    return testing::error_of([&] { (void)models::make_text_encoder(config, "test"); },
                             ErrorCode::configuration);
  };
  EXPECT_EQ(refused("layer_types", {"full_attention"}),
            "test: layer_types must be a list of \"full_attention\" or \"sliding_attention\" for "
            "each of 2 layers");
  EXPECT_EQ(refused("layer_types", {"full_attention", "linear_attention"}),
            "test: layer_types has \"linear_attention\"; it must have \"full_attention\" or "
            "\"sliding_attention\"");
  EXPECT_EQ(refused("rope_parameters", {{"full_attention", {{"rope_type", "yarn"}}}}),
            "test: rope_parameters has {\"rope_type\":\"yarn\"} for full_attention; only rope_type "
            "\"default\" is supported");
  EXPECT_EQ(refused("rope_scaling", {{"factor", 2}}),
            "test: rope_scaling is not supported; use null");
  EXPECT_EQ(refused("hidden_size", 15),
            "test: hidden_size = 15 is not an even multiple of num_attention_heads = 3");
}

}  // namespace
}  // namespace tessera

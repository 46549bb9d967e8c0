// T5's encoder: Hugging Face's names and shapes, both feed-forwards, refusals.
#include "models/t5/t5.h"

#include <gtest/gtest.h>

#include "models/encoder_testing.h"
#include "models/model_testing.h"
#include "support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(T5, HasHuggingFaceNamesAndShapes) {
  const auto model = models::make_text_encoder(testing::tiny_encoder("t5"), "test");
  const std::vector<std::string> wanted = {
      "shared.weight [29, 12]",
      "encoder.block.0.layer.0.SelfAttention.q.weight [15, 12]",
      "encoder.block.0.layer.0.SelfAttention.k.weight [15, 12]",
      "encoder.block.0.layer.0.SelfAttention.v.weight [15, 12]",
      "encoder.block.0.layer.0.SelfAttention.o.weight [12, 15]",
      "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight [32, 3]",
      "encoder.block.0.layer.0.layer_norm.weight [12]",
      "encoder.block.0.layer.1.DenseReluDense.wi.weight [20, 12]",
      "encoder.block.0.layer.1.DenseReluDense.wo.weight [12, 20]",
      "encoder.block.0.layer.1.layer_norm.weight [12]",
      "encoder.block.1.layer.0.SelfAttention.q.weight [15, 12]",
      "encoder.block.1.layer.0.SelfAttention.k.weight [15, 12]",
      "encoder.block.1.layer.0.SelfAttention.v.weight [15, 12]",
      "encoder.block.1.layer.0.SelfAttention.o.weight [12, 15]",
      "encoder.block.1.layer.0.layer_norm.weight [12]",
      "encoder.block.1.layer.1.DenseReluDense.wi.weight [20, 12]",
      "encoder.block.1.layer.1.DenseReluDense.wo.weight [12, 20]",
      "encoder.block.1.layer.1.layer_norm.weight [12]",
      "encoder.final_layer_norm.weight [12]",
  };
  EXPECT_EQ(testing::names_and_shapes(*model), wanted);
}

// transformers' count of the encoder of t5-base.
TEST(T5, HasTheKnownNumberOfParameters) {
  const DeviceGuard meta(Device::meta());
  const json config = {{"model_type", "t5"},
                       {"d_model", 768},
                       {"num_layers", 12},
                       {"num_heads", 12},
                       {"d_ff", 3072}};
  EXPECT_EQ(testing::parameter_count(*models::make_text_encoder(config, "test")), 109'628'544);
}

TEST(T5, TheGatedFeedForwardHasItsGradients) {
  json config = testing::tiny_encoder("t5");
  config["feed_forward_proj"] = "gated-gelu";
  testing::check_encoder_gradients(config);
}

TEST(T5, RefusesOtherConfigurations) {
  const auto refused = [](const char* key, const json& value) {
    json config = testing::tiny_encoder("t5");
    config[key] = value;
    return testing::error_of([&] { (void)models::make_text_encoder(config, "test"); },
                             ErrorCode::configuration);
  };
  EXPECT_NE(refused("feed_forward_proj", "gated-silu").find("feed_forward_proj"),
            std::string::npos);
  EXPECT_EQ(refused("relative_attention_num_buckets", 30),
            "test: relative_attention_num_buckets = 30 is not a multiple of 4");
  EXPECT_EQ(refused("relative_attention_max_distance", 8),
            "test: relative_attention_max_distance = 8 is not above a quarter of "
            "relative_attention_num_buckets = 32");
}

}  // namespace
}  // namespace tessera

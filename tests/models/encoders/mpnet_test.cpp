// MPNet: Hugging Face's names and shapes, its positions, and the buckets of its attention bias.
#include "models/mpnet/mpnet.h"

#include <gtest/gtest.h>

#include "models/encoder_testing.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(MPNet, HasHuggingFaceNamesAndShapes) {
  json config = testing::tiny_encoder("mpnet");
  config["num_hidden_layers"] = 1;
  const auto model = models::make_text_encoder(config, "test");
  const std::vector<std::string> wanted = {
      "embeddings.word_embeddings.weight [29, 12]",
      "embeddings.position_embeddings.weight [18, 12]",
      "embeddings.LayerNorm.weight [12]",
      "embeddings.LayerNorm.bias [12]",
      "encoder.layer.0.attention.attn.q.weight [12, 12]",
      "encoder.layer.0.attention.attn.q.bias [12]",
      "encoder.layer.0.attention.attn.k.weight [12, 12]",
      "encoder.layer.0.attention.attn.k.bias [12]",
      "encoder.layer.0.attention.attn.v.weight [12, 12]",
      "encoder.layer.0.attention.attn.v.bias [12]",
      "encoder.layer.0.attention.attn.o.weight [12, 12]",
      "encoder.layer.0.attention.attn.o.bias [12]",
      "encoder.layer.0.attention.LayerNorm.weight [12]",
      "encoder.layer.0.attention.LayerNorm.bias [12]",
      "encoder.layer.0.intermediate.dense.weight [20, 12]",
      "encoder.layer.0.intermediate.dense.bias [20]",
      "encoder.layer.0.output.dense.weight [12, 20]",
      "encoder.layer.0.output.dense.bias [12]",
      "encoder.layer.0.output.LayerNorm.weight [12]",
      "encoder.layer.0.output.LayerNorm.bias [12]",
      "encoder.relative_attention_bias.weight [32, 3]",
  };
  EXPECT_EQ(testing::names_and_shapes(*model), wanted);
  EXPECT_EQ(model->positions(), 16);
}

TEST(MPNet, HasTheKnownNumberOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto base = models::make_text_encoder(
      {{"model_type", "mpnet"}, {"max_position_embeddings", 514}}, "test");
  EXPECT_EQ(testing::parameter_count(*base), 109'486'464 - 768 * 769);
}

// Values of transformers' relative_position_bucket.
TEST(MPNet, BucketsOfDistances) {
  EXPECT_EQ(models::distance_bucket(0), 0);
  EXPECT_EQ(models::distance_bucket(-1), 1);
  EXPECT_EQ(models::distance_bucket(1), 17);
  EXPECT_EQ(models::distance_bucket(-7), 7);
  EXPECT_EQ(models::distance_bucket(-8), 8);
  EXPECT_EQ(models::distance_bucket(-11), 8);
  EXPECT_EQ(models::distance_bucket(-12), 9);
  EXPECT_EQ(models::distance_bucket(16), 26);
  EXPECT_EQ(models::distance_bucket(-127), 15);
  EXPECT_EQ(models::distance_bucket(100000), 31);
}

TEST(MPNet, PositionsBeginAfterPaddings) {
  const auto model = models::make_text_encoder(testing::tiny_encoder("mpnet"), "test");
  const models::TokenBatch batch{
      Tensor::from(std::vector<std::int32_t>{0, 5, 1, 7, 0, 9, 1, 1}, {2, 4}),
      Tensor::from(std::vector<std::int32_t>{4, 2}, {2})};
  const models::TokenRows rows = model->rows_of(batch);
  EXPECT_EQ(rows.ids.to_vector(), (std::vector<double>{0, 5, 1, 7, 0, 9}));
  EXPECT_EQ(rows.positions.to_vector(), (std::vector<double>{2, 3, 1, 4, 2, 3}));
  EXPECT_EQ(rows.sequences.starts.to_vector(), (std::vector<double>{0, 4}));
  EXPECT_EQ(rows.sequences.slots.to_vector(), (std::vector<double>{0, 1, 2, 3, 16, 17}));
  EXPECT_EQ(rows.sequences.longest, 4);
}

TEST(MPNet, TheBiasChangesTheAttention) {
  manual_seed(5);
  const auto model = models::make_text_encoder(testing::tiny_encoder("mpnet"), "test");
  model->eval();
  const models::TokenBatch batch = testing::encoder_batch({6}, 6);
  const auto before = model->forward(batch).to_vector();
  for (const auto& [name, tensor, shape] : model->named_parameters()) {
    if (name.find("relative") == std::string::npos) continue;
    Tensor written = tensor;
    written.data_as<float>()[17 * 3] += 1.0f;  // one key further, first head
  }
  EXPECT_NE(model->forward(batch).to_vector(), before);
}

}  // namespace
}  // namespace tessera

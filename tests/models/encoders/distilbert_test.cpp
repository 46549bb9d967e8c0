// DistilBERT: Hugging Face's names and shapes, and its places of dropout.
#include "models/distilbert/distilbert.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/encoder_testing.h"
#include "models/model_testing.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(DistilBert, HasHuggingFaceNamesAndShapes) {
  json config = testing::tiny_encoder("distilbert");
  config["n_layers"] = 1;
  const auto model = models::make_text_encoder(config, "test");
  const std::vector<std::string> wanted = {
      "embeddings.word_embeddings.weight [29, 12]",
      "embeddings.position_embeddings.weight [16, 12]",
      "embeddings.LayerNorm.weight [12]",
      "embeddings.LayerNorm.bias [12]",
      "transformer.layer.0.attention.q_lin.weight [12, 12]",
      "transformer.layer.0.attention.q_lin.bias [12]",
      "transformer.layer.0.attention.k_lin.weight [12, 12]",
      "transformer.layer.0.attention.k_lin.bias [12]",
      "transformer.layer.0.attention.v_lin.weight [12, 12]",
      "transformer.layer.0.attention.v_lin.bias [12]",
      "transformer.layer.0.attention.out_lin.weight [12, 12]",
      "transformer.layer.0.attention.out_lin.bias [12]",
      "transformer.layer.0.sa_layer_norm.weight [12]",
      "transformer.layer.0.sa_layer_norm.bias [12]",
      "transformer.layer.0.ffn.lin1.weight [20, 12]",
      "transformer.layer.0.ffn.lin1.bias [20]",
      "transformer.layer.0.ffn.lin2.weight [12, 20]",
      "transformer.layer.0.ffn.lin2.bias [12]",
      "transformer.layer.0.output_layer_norm.weight [12]",
      "transformer.layer.0.output_layer_norm.bias [12]",
  };
  EXPECT_EQ(testing::names_and_shapes(*model), wanted);
  EXPECT_EQ(model->positions(), 16);
}

// transformers' count.
TEST(DistilBert, HasTheKnownNumberOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto base = models::make_text_encoder({{"model_type", "distilbert"}}, "test");
  EXPECT_EQ(testing::parameter_count(*base), 66'362'880);
}

TEST(DistilBert, TheAttentionsOutputHasNoDropout) {
  const testing::OneThread one_thread;
  manual_seed(5);
  json config = testing::tiny_encoder("distilbert");
  config["attention_dropout"] = 0;
  config["dropout"] = 0.5;
  const auto model = models::make_text_encoder(config, "test");
  const auto set = [&](const std::string& part, float value) {
    for (auto& parameter : model->named_parameters()) {
      if (parameter.name.find(part) == std::string::npos) continue;
      std::fill_n(parameter.tensor.data_as<float>(), parameter.tensor.elements(), value);
    }
  };
  // Zeros stay zeros under dropout: the embeddings and the feed-forward layers' outputs. The
  // attention's output is not zero.
  set("embeddings", 0);
  set("ffn.lin2", 0);
  set("v_lin.bias", 1);
  const models::TokenBatch batch = testing::encoder_batch({5, 8}, 8);
  begin_batch({.step = 1, .first_sample = 0, .samples = 2});
  model->train();
  const auto training = model->forward(batch).to_vector();
  model->eval();
  EXPECT_EQ(training, model->forward(batch).to_vector());
  EXPECT_GT(*std::max_element(training.begin(), training.end()), 0.1);
}

}  // namespace
}  // namespace tessera

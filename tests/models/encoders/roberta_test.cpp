// RoBERTa, XLM-RoBERTa and CamemBERT: Hugging Face's names and shapes, and positions after
// padding's.
#include "models/roberta/roberta.h"

#include <gtest/gtest.h>

#include "models/encoder_testing.h"
#include "models/model_testing.h"
#include "support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(Roberta, HasHuggingFaceNamesAndShapes) {
  json config = testing::tiny_encoder("roberta");
  config["num_hidden_layers"] = 1;
  const auto model = models::make_text_encoder(config, "test");
  EXPECT_EQ(testing::names_and_shapes(*model), testing::bert_names_and_shapes(18));
  EXPECT_EQ(model->positions(), 16);
}

// transformers' counts, without the pooler.
TEST(Roberta, HasTheKnownNumberOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto count = [](json config) {
    config["max_position_embeddings"] = 514;
    config["type_vocab_size"] = 1;
    return testing::parameter_count(*models::make_text_encoder(config, "test"));
  };
  EXPECT_EQ(count({{"model_type", "roberta"}}), 124'645'632 - 768 * 769);
  EXPECT_EQ(count({{"model_type", "xlm-roberta"}, {"vocab_size", 250002}}),
            278'043'648 - 768 * 769);
  EXPECT_EQ(count({{"model_type", "camembert"}, {"vocab_size", 32005}}), 110'621'952 - 768 * 769);
}

TEST(Roberta, LayersHaveTheFamilysClass) {
  for (const auto& [type, layer] : {std::pair{"roberta", "RobertaLayer"},
                                    {"xlm-roberta", "XLMRobertaLayer"},
                                    {"camembert", "CamembertLayer"}}) {
    const auto model = models::make_text_encoder(testing::tiny_encoder(type), "test");
    EXPECT_EQ(model->layer_class(), layer);
    std::int64_t layers = 0;
    for (const auto& [name, module] : model->named_modules()) {
      if (module->class_name() == layer) ++layers;
    }
    EXPECT_EQ(layers, 2) << type;
    EXPECT_EQ(model->config().at("model_type"), type);
  }
}

// As in transformers: a padding token within a text has padding's position and is not counted.
TEST(Roberta, PositionsBeginAfterPaddings) {
  json config = testing::tiny_encoder("roberta");
  config["pad_token_id"] = 3;
  config["max_position_embeddings"] = 10;
  const auto model = models::make_text_encoder(config, "test");
  EXPECT_EQ(model->positions(), 6);
  const models::TokenBatch batch{Tensor::from(std::vector<std::int32_t>{7, 3, 8, 9}, {1, 4}),
                                 Tensor::from(std::vector<std::int32_t>{4}, {1})};
  EXPECT_EQ(model->rows_of(batch).positions.to_vector(), (std::vector<double>{4, 3, 5, 6}));
}

TEST(Roberta, RefusesWhatItDoesNotCompute) {
  const auto refusal = [](const char* key, const json& value) {
    json config = testing::tiny_encoder("roberta");
    config[key] = value;
    return testing::error_of([&] { (void)models::make_text_encoder(config, "test"); },
                             ErrorCode::configuration);
  };
  EXPECT_NE(refusal("max_position_embeddings", 2).find("the first 2 positions are for padding"),
            std::string::npos);
  EXPECT_NE(refusal("pad_token_id", 29).find("pad_token_id = 29"), std::string::npos);
  EXPECT_NE(refusal("position_embedding_type", "relative_key").find("use absolute"),
            std::string::npos);
  EXPECT_NE(refusal("is_decoder", true).find("is_decoder"), std::string::npos);
}

}  // namespace
}  // namespace tessera

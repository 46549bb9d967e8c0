// BERT: Hugging Face's names and shapes, sizes, and the names of tensors in files.
#include "models/bert/bert.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "models/encoder_testing.h"
#include "models/model_testing.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(Bert, HasHuggingFaceNamesAndShapes) {
  json config = testing::tiny_encoder("bert");
  config["num_hidden_layers"] = 1;
  const auto model = models::make_text_encoder(config, "test");
  EXPECT_EQ(testing::names_and_shapes(*model), testing::bert_names_and_shapes(16));
}

TEST(Bert, HasTheKnownNumbersOfParameters) {
  const DeviceGuard meta(Device::meta());
  // Without the poolers, which have hidden_size * (hidden_size + 1).
  const auto base = models::make_text_encoder({{"model_type", "bert"}}, "test");
  EXPECT_EQ(testing::parameter_count(*base), 109'482'240 - 768 * 769);
  const auto mini = models::make_text_encoder({{"model_type", "bert"},
                                               {"hidden_size", 384},
                                               {"num_hidden_layers", 6},
                                               {"intermediate_size", 1536}},
                                              "test");
  EXPECT_EQ(testing::parameter_count(*mini), 22'713'216 - 384 * 385);
}

TEST(Bert, NamesOfFiles) {
  const auto model = models::make_text_encoder(testing::tiny_encoder("bert"), "test");
  const models::HuggingFaceNames names = model->hugging_face_names();
  EXPECT_EQ(names.aliases("embeddings.LayerNorm.weight"),
            (std::vector<std::string>{"embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma",
                                      "bert.embeddings.LayerNorm.weight",
                                      "bert.embeddings.LayerNorm.gamma"}));
  EXPECT_EQ(names.aliases("encoder.layer.0.output.dense.bias").size(), 2u);
  const auto ignores = [&](const std::string& name) {
    return std::find(names.ignored.begin(), names.ignored.end(), name) != names.ignored.end();
  };
  EXPECT_TRUE(ignores("pooler.dense.weight"));
  EXPECT_TRUE(ignores("bert.pooler.dense.bias"));
  EXPECT_TRUE(ignores("cls.predictions.decoder.weight"));
  EXPECT_FALSE(ignores("embeddings.word_embeddings.weight"));
}

TEST(Bert, ConfigIsReadAndWritten) {
  json config = testing::tiny_encoder("bert");
  config["pad_token_id"] = 0;
  config["hidden_act"] = "gelu_new";
  const auto model = models::make_text_encoder(config, "test");
  const json written = model->config(bfloat16);
  for (const auto& [key, value] : config.items()) EXPECT_EQ(written.at(key), value) << key;
  EXPECT_EQ(written.at("architectures"), json({"BertModel"}));
  EXPECT_EQ(written.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(models::make_text_encoder(written, "again")->config(bfloat16), written);
}

TEST(Bert, RefusesUnsupportedConfigurations) {
  const auto refusal = [](const char* key, const json& value) {
    json config = testing::tiny_encoder("bert");
    config[key] = value;
    return testing::error_of([&] { (void)models::make_text_encoder(config, "config.json"); },
                             ErrorCode::configuration);
  };
  EXPECT_NE(refusal("position_embedding_type", "relative_key").find("position_embedding_type"),
            std::string::npos);
  EXPECT_NE(refusal("is_decoder", true).find("is_decoder"), std::string::npos);
  EXPECT_NE(refusal("hidden_act", "relu").find("hidden_act"), std::string::npos);
  EXPECT_NE(refusal("num_attention_heads", 5).find("num_attention_heads"), std::string::npos);
  EXPECT_NE(refusal("model_type", "albert").find("albert"), std::string::npos);
}

}  // namespace
}  // namespace tessera

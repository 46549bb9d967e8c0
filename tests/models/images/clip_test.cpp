// CLIP: Hugging Face's names and shapes, gradients, the end of a text, the loss over all ranks,
// refusals.
#include "models/clip/clip.h"

#include <gtest/gtest.h>

#include <mutex>

#include "models/images/image_testing.h"
#include "models/model_testing.h"
#include "support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(CLIP, HasHuggingFaceNamesAndShapes) {
  json config = testing::tiny_clip();
  config["text_config"]["num_hidden_layers"] = 1;
  std::vector<std::string> wanted = {"logit_scale []",
                                     "text_model.embeddings.token_embedding.weight [29, 12]",
                                     "text_model.embeddings.position_embedding.weight [9, 12]"};
  const auto layer = [&](const std::string& prefix, const std::string& w) {
    for (const char* part : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      wanted.push_back(prefix + "self_attn." + part + ".weight [" + w + ", " + w + "]");
      wanted.push_back(prefix + "self_attn." + part + ".bias [" + w + "]");
    }
    wanted.insert(
        wanted.end(),
        {prefix + "layer_norm1.weight [" + w + "]", prefix + "layer_norm1.bias [" + w + "]",
         prefix + "mlp.fc1.weight [20, " + w + "]", prefix + "mlp.fc1.bias [20]",
         prefix + "mlp.fc2.weight [" + w + ", 20]", prefix + "mlp.fc2.bias [" + w + "]",
         prefix + "layer_norm2.weight [" + w + "]", prefix + "layer_norm2.bias [" + w + "]"});
  };
  layer("text_model.encoder.layers.0.", "12");
  wanted.insert(wanted.end(),
                {"text_model.final_layer_norm.weight [12]", "text_model.final_layer_norm.bias [12]",
                 "vision_model.embeddings.class_embedding [16]",
                 "vision_model.embeddings.patch_embedding.weight [16, 2, 4, 4]",
                 "vision_model.embeddings.position_embedding.weight [5, 16]",
                 "vision_model.pre_layrnorm.weight [16]", "vision_model.pre_layrnorm.bias [16]"});
  layer("vision_model.encoder.layers.0.", "16");
  wanted.insert(wanted.end(),
                {"vision_model.post_layernorm.weight [16]", "vision_model.post_layernorm.bias [16]",
                 "visual_projection.weight [10, 16]", "text_projection.weight [10, 12]"});
  EXPECT_EQ(testing::names_and_shapes(models::CLIPModel(testing::clip_config(config))), wanted);
}

// transformers' count of clip-vit-base-patch32.
TEST(CLIP, HasTheKnownNumberOfParameters) {
  const DeviceGuard meta(Device::meta());
  EXPECT_EQ(testing::parameter_count(models::CLIPModel(testing::clip_config(json::object()))),
            151'277'313);
}

TEST(CLIP, HasItsGradients) {
  launch(1, [](Context& context) {
    manual_seed(7);
    const nn::ParameterDTypeGuard fp64(float64);
    json config = testing::tiny_clip();
    config["logit_scale_init_value"] = 1;
    for (const char* part : {"text_config", "vision_config"})
      config[part]["attention_dropout"] = 0.1;
    const models::CLIPModel model(testing::clip_config(config));
    const Tensor images = cast(testing::image_batch(0, 3), float64);
    const Tensor ids = testing::text_batch(0, 3);
    std::vector<Tensor> leaves;
    for (const auto& parameter : model.named_parameters()) leaves.push_back(parameter.tensor);
    const auto loss = [&] {
      begin_batch({.step = 3, .first_sample = 0, .samples = 3});
      return model.loss(images, ids, context);
    };
    testing::check_gradients(loss, leaves, {.step = 1e-5, .tolerance = 1e-7, .max_elements = 8});
  });
}

// With the number of the token at a place, the text's state is that of the first such place; with
// 2, that of the first place of the highest number.
TEST(CLIP, ATextHasTheStateOfItsEnd) {
  manual_seed(2);
  const auto place_of_state = [](std::int64_t eos, const std::vector<std::int32_t>& ids) {
    models::CLIPTextConfig config = testing::clip_config().text;
    config.eos_token_id = eos;
    const models::CLIPTextModel model(config);
    const auto length = static_cast<std::int64_t>(ids.size());
    const auto [states, pooled] = model(Tensor::from(ids, {1, length}));
    for (std::int64_t t = 0; t < length; ++t) {
      if (select(states, 1, t).to_vector() == pooled.to_vector()) return t;
    }
    return std::int64_t{-1};
  };
  EXPECT_EQ(place_of_state(9, {5, 20, 9, 9, 28}), 2);
  EXPECT_EQ(place_of_state(9, {5, 20, 3, 1, 28}), 0);  // none, as in transformers
  EXPECT_EQ(place_of_state(2, {5, 20, 2, 28, 28}), 3);
  EXPECT_EQ(place_of_state(2, {5, 20, 2, 7, 0}), 1);
}

TEST(CLIP, TokensBehindTheEndChangeNothing) {
  manual_seed(2);
  const models::CLIPModel model(testing::clip_config());
  const Tensor padded = model.text_features(Tensor::from({4, 7, 28, 28, 28}, {1, 5}));
  const Tensor other = model.text_features(Tensor::from({4, 7, 28, 0, 3}, {1, 5}));
  EXPECT_EQ(padded.to_vector(), other.to_vector());
}

// The mean of the ranks' losses and gradients is that of one rank with all rows.
TEST(CLIP, TheLossIsThatOfTheWholeBatch) {
  const auto step = [](int world) {
    std::vector<double> values;
    std::mutex mutex;
    launch(world, [&](Context& context) {
      const testing::OneThread one_thread;
      const std::int64_t samples = 12 / world;
      const auto rows = [&](unsigned seed) {
        const Tensor all = testing::values({12, 5}, seed);
        return narrow(all, 0, context.rank() * samples, samples).clone();
      };
      Tensor images = rows(1), texts = rows(2), scale = Tensor::from({3.0}, {1});
      for (Tensor* tensor : {&images, &texts, &scale}) tensor->set_requires_grad(true);
      const Tensor loss =
          models::contrastive_loss(normalize_rows(images), normalize_rows(texts), scale, context);
      loss.backward();
      std::vector<double> found{context.mean(loss.item()), context.mean(scale.grad().item())};
      for (const Tensor& tensor : {images, texts}) {
        const Tensor all = context.gather_for_metrics(tensor.grad(), samples);
        for (const double value : all.to_vector()) found.push_back(value / world);
      }
      const std::lock_guard lock(mutex);
      if (context.is_main()) values = found;
    });
    return values;
  };
  const std::vector<double> alone = step(1);
  for (const int world : {2, 3}) {
    const std::vector<double> shared = step(world);
    ASSERT_EQ(shared.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_NEAR(shared[i], alone[i], 1e-12) << world << " ranks, " << i;
    }
  }
}

TEST(CLIP, TheConfigurationIsWrittenAsItWasRead) {
  json config = testing::tiny_clip();
  config["text_config_dict"] = config["text_config"];  // of early files: it replaces the other
  config["text_config"]["vocab_size"] = 999;
  config["text_config"]["eos_token_id"] = 2;
  config["vision_config"]["image_size"] = {8, 8};
  const models::CLIPConfig read = testing::clip_config(config);
  EXPECT_EQ(read.text.vocab_size, 29);
  const json written = models::CLIPModel(read).config();
  EXPECT_FALSE(written.contains("text_config_dict"));
  EXPECT_EQ(written["text_config"]["eos_token_id"], testing::end_of_text);
  EXPECT_EQ(written["text_config"]["hidden_act"], "quick_gelu");
  EXPECT_EQ(written["vision_config"]["image_size"], 8);
  EXPECT_EQ(written["projection_dim"], 10);
  EXPECT_EQ(testing::clip_config(written).to_json(float32), written);
}

TEST(CLIP, RefusesOtherConfigurations) {
  const auto refused = [](const char* part, const char* key, const json& value) {
    json config = testing::tiny_clip();
    config[part][key] = value;
    return testing::error_of([&] { (void)testing::clip_config(config); }, ErrorCode::configuration);
  };
  EXPECT_EQ(refused("vision_config", "patch_size", 3),
            "test: vision_config.image_size = 8 is not a multiple of patch_size = 3");
  EXPECT_EQ(refused("vision_config", "image_size", {8, 4}),
            "test: vision_config.image_size is [8,4]; only squares are supported: one number, or "
            "the same one twice");
  EXPECT_EQ(refused("text_config", "eos_token_id", 29),
            "test: text_config.eos_token_id = 29 is not a token of vocab_size = 29");
  EXPECT_EQ(refused("text_config", "eos_token_id", nullptr),
            "test: text_config.eos_token_id is null; the token at the end of a text is required");
  EXPECT_NE(refused("text_config", "eos_token_id", {1, 2}).find("text_config.eos_token_id"),
            std::string::npos);
  EXPECT_NE(refused("text_config", "hidden_act", "selu").find("text_config.hidden_act"),
            std::string::npos);
  EXPECT_EQ(refused("text_config", "hidden_size", 13),
            "test: text_config.hidden_size = 13 is not a multiple of num_attention_heads = 3");
  EXPECT_EQ(refused("text_config", "dropout", 0.1),
            "test: text_config.dropout = 0.1 is not supported; use 0");
  EXPECT_EQ(refused("vision_config", "model_type", "siglip_vision_model"),
            "test: vision_config.model_type is \"siglip_vision_model\"; \"clip_vision_model\" is "
            "required here");
  json config = testing::tiny_clip();
  config["text_config"] = 3;
  EXPECT_EQ(
      testing::error_of([&] { (void)testing::clip_config(config); }, ErrorCode::configuration),
      "test: text_config is 3; it must be an object");
}

}  // namespace
}  // namespace tessera

// ViT: Hugging Face's names and shapes, gradients, losses by the kind of labels, refusals.
#include "models/vit/vit.h"

#include <gtest/gtest.h>

#include "engine/device/memory.h"
#include "engine/ops/products/convolution.h"
#include "models/images/image_testing.h"
#include "models/model_testing.h"
#include "support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

TEST(ViT, HasHuggingFaceNamesAndShapes) {
  json config = testing::tiny_vit();
  config["num_hidden_layers"] = 1;
  const std::vector<std::string> body = {
      "embeddings.cls_token [1, 1, 12]",
      "embeddings.position_embeddings [1, 5, 12]",
      "embeddings.patch_embeddings.projection.weight [12, 2, 4, 4]",
      "embeddings.patch_embeddings.projection.bias [12]",
      "encoder.layer.0.attention.attention.query.weight [12, 12]",
      "encoder.layer.0.attention.attention.query.bias [12]",
      "encoder.layer.0.attention.attention.key.weight [12, 12]",
      "encoder.layer.0.attention.attention.key.bias [12]",
      "encoder.layer.0.attention.attention.value.weight [12, 12]",
      "encoder.layer.0.attention.attention.value.bias [12]",
      "encoder.layer.0.attention.output.dense.weight [12, 12]",
      "encoder.layer.0.attention.output.dense.bias [12]",
      "encoder.layer.0.layernorm_before.weight [12]",
      "encoder.layer.0.layernorm_before.bias [12]",
      "encoder.layer.0.intermediate.dense.weight [20, 12]",
      "encoder.layer.0.intermediate.dense.bias [20]",
      "encoder.layer.0.output.dense.weight [12, 20]",
      "encoder.layer.0.output.dense.bias [12]",
      "encoder.layer.0.layernorm_after.weight [12]",
      "encoder.layer.0.layernorm_after.bias [12]",
      "layernorm.weight [12]",
      "layernorm.bias [12]",
  };
  std::vector<std::string> wanted = body;
  wanted.insert(wanted.end(), {"pooler.dense.weight [12, 12]", "pooler.dense.bias [12]"});
  EXPECT_EQ(testing::names_and_shapes(models::ViTModel(testing::vit_config(config))), wanted);
  EXPECT_EQ(testing::names_and_shapes(models::ViTModel(testing::vit_config(config), false)), body);
  wanted.clear();
  for (const std::string& line : body) wanted.push_back("vit." + line);
  wanted.insert(wanted.end(), {"classifier.weight [5, 12]", "classifier.bias [5]"});
  EXPECT_EQ(
      testing::names_and_shapes(models::ViTForImageClassification(testing::vit_config(config))),
      wanted);
}

// transformers' counts for vit-base-patch16-224, with 1000 classes and with the pooler.
TEST(ViT, HasTheKnownNumberOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto config = testing::vit_config({{"num_labels", 1000}});
  EXPECT_EQ(testing::parameter_count(models::ViTForImageClassification(config)), 86'567'656);
  EXPECT_EQ(testing::parameter_count(models::ViTModel(config)), 86'389'248);
}

// The sums have another order than the convolution's.
TEST(ViT, PatchesAreProjectedAsAConvolutionDoes) {
  manual_seed(3);
  const nn::ParameterDTypeGuard fp64(float64);
  const models::PatchProjection projection(models::PatchProjectionImpl::Options{
      .channels = 2, .image = 12, .patch = 4, .width = 5, .deviation = 0.5});
  const Tensor images = testing::values({3, 2, 12, 12}, 8);
  const auto parameters = projection->named_parameters();
  const Tensor whole = conv2d(images, parameters[0].tensor, parameters[1].tensor, {.stride = 4});
  const std::vector<double> wanted = transpose(reshape(whole, {3, 5, 9}), 1, 2).to_vector();
  const std::vector<double> got = projection(images).to_vector();
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12) << i;
}

void check_vit_gradients(const json& config) {
  manual_seed(7);
  const nn::ParameterDTypeGuard fp64(float64);
  const models::ViTForImageClassification model(testing::vit_config(config));
  const Tensor images = cast(testing::image_batch(0, 3), float64);
  const Tensor classes = testing::class_batch(0, 3);
  std::vector<Tensor> leaves;
  for (const auto& parameter : model.named_parameters()) leaves.push_back(parameter.tensor);
  const auto loss = [&] {
    begin_batch({.step = 3, .first_sample = 0, .samples = 3});
    return model.loss(images, classes);
  };
  testing::check_gradients(loss, leaves, {.step = 1e-5, .tolerance = 5e-8, .max_elements = 8});
}

TEST(ViT, HasItsGradients) {
  json config = testing::tiny_vit();
  config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = 0.1;
  check_vit_gradients(config);
  config["qkv_bias"] = false;
  config["hidden_act"] = "quick_gelu";
  check_vit_gradients(config);
}

TEST(ViT, LabelsDecideTheLoss) {
  const auto loss = [](const json& changes, const Tensor& labels) {
    json config = testing::tiny_vit();
    config.update(changes);
    const models::ViTForImageClassification model(testing::vit_config(config));
    const Tensor logits = testing::values({2, 3}, 4);
    const std::int64_t classes = static_cast<std::int64_t>(model.configuration().labels.size());
    return model.loss_of(cast(narrow(logits, 1, 0, classes), float32), labels).item();
  };
  const Tensor logits = cast(testing::values({2, 3}, 4), float32);
  const json three = {{"num_labels", 3}}, one = {{"num_labels", 1}};
  const Tensor numbers = Tensor::from({2, 0}, {2});
  EXPECT_EQ(loss(three, numbers), cross_entropy(logits, numbers).item());
  const Tensor several = Tensor::from({1.f, 0.f, 1.f, 0.f, 0.f, 1.f}, {2, 3});
  EXPECT_EQ(loss(three, several), bce_with_logits(logits, several).item());
  json regression = three;
  regression["problem_type"] = "regression";
  EXPECT_EQ(loss(regression, several), mse_loss(logits, several).item());
  const Tensor targets = Tensor::from({0.5f, -1.f}, {2});
  EXPECT_EQ(loss(one, targets), mse_loss(select(logits, 1, 0), targets).item());
  json classification = three;
  classification["problem_type"] = "single_label_classification";
  EXPECT_THROW(loss(classification, several), std::logic_error);
  EXPECT_THROW(loss(one, numbers), std::logic_error);
}

TEST(ViT, WrongImagesAreRefused) {
  const models::ViTForImageClassification model(testing::vit_config());
  EXPECT_THROW((void)model.forward(testing::values({2, 2, 8, 9}, 1)), std::logic_error);
  EXPECT_THROW((void)model.forward(testing::values({2, 3, 8, 8}, 1)), std::logic_error);
  const models::ViTModel without(testing::vit_config(), false);
  EXPECT_THROW((void)without.pooled(without.forward(testing::image_batch(0, 1))), std::logic_error);
}

TEST(ViT, TheConfigurationIsWrittenAsItWasRead) {
  json config = testing::tiny_vit();
  config["id2label"] = {{"0", "cat"}, {"1", "dog"}};
  config.erase("num_labels");
  config["image_size"] = {8, 8};
  config["encoder_stride"] = 4;
  config["qkv_bias"] = false;
  const models::ViTConfig read = testing::vit_config(config);
  EXPECT_EQ(read.labels, (std::vector<std::string>{"cat", "dog"}));
  const json written = models::ViTForImageClassification(read).config();
  EXPECT_EQ(written["architectures"], json({"ViTForImageClassification"}));
  EXPECT_EQ(written["id2label"], config["id2label"]);
  EXPECT_EQ(written["label2id"], json({{"cat", 0}, {"dog", 1}}));
  EXPECT_EQ(written["encoder_stride"], 4);
  EXPECT_EQ(written["image_size"], 8);
  EXPECT_EQ(written["pooler_output_size"], 12);
  EXPECT_EQ(models::ViTModel(testing::vit_config(written)).config()["qkv_bias"], false);
}

TEST(ViT, RefusesOtherConfigurations) {
  const auto refused = [](const char* key, const json& value) {
    json config = testing::tiny_vit();
    config[key] = value;
    return testing::error_of([&] { (void)testing::vit_config(config); }, ErrorCode::configuration);
  };
  EXPECT_EQ(refused("image_size", {8, 16}),
            "test: image_size is [8,16]; only squares are supported: one number, or the same one "
            "twice");
  EXPECT_EQ(refused("patch_size", 3), "test: image_size = 8 is not a multiple of patch_size = 3");
  EXPECT_NE(refused("hidden_act", "selu").find("hidden_act"), std::string::npos);
  EXPECT_EQ(refused("hidden_size", 13),
            "test: hidden_size = 13 is not a multiple of num_attention_heads = 3");
  EXPECT_EQ(refused("model_type", "deit"),
            "test: model_type is \"deit\"; \"vit\" is required here");
  EXPECT_EQ(refused("head_dim", 8),
            "test: head_dim = 8 is not supported; use 4, hidden_size / num_attention_heads");
  EXPECT_EQ(refused("pruned_heads", {{"0", {1}}}),
            "test: pruned_heads is not supported; save the model with all its heads");
  EXPECT_EQ(refused("id2label", {{"0", "cat"}}),
            "test: num_labels = 5 differs from the 1 of id2label");
  EXPECT_NE(refused("problem_type", "ranking").find("problem_type"), std::string::npos);
  EXPECT_NE(refused("num_channels", 0).find("num_channels"), std::string::npos);
  json config = testing::tiny_vit();
  config.erase("num_labels");
  config["id2label"] = {{"0", "cat"}, {"2", "dog"}};
  EXPECT_EQ(testing::error_of([&] { (void)testing::vit_config(config); }, ErrorCode::configuration),
            "test: id2label has 2 classes but no name of the class 1");
}

// models/vit/pre_norm_layer.h lists the tensors that a layer keeps.
TEST(ViT, ALayerKeepsTheTensorsOfItsHeader) {
  const auto kept = [](int layers, const char* activation) {
    const models::ViTForImageClassification model(
        testing::vit_config({{"hidden_size", 64},
                             {"num_attention_heads", 4},
                             {"intermediate_size", 256},
                             {"image_size", 32},
                             {"patch_size", 4},
                             {"num_hidden_layers", layers},
                             {"hidden_act", activation}}));
    const Tensor images = cast(testing::values({4, 3, 32, 32}, 1), float32);
    const auto before = MemoryPool::current()->stats().in_use;
    const Tensor loss = model.loss(images, Tensor::from({1, 0, 1, 0}, {4}));
    return static_cast<double>(MemoryPool::current()->stats().in_use - before);
  };
  const double unit = 4 * 65 * 64 * sizeof(float);
  // In addition: statistics of the norms, log-sums of the attention.
  for (const auto& [activation, units] : {std::pair{"gelu", 10.0}, {"quick_gelu", 14.0}}) {
    EXPECT_NEAR((kept(4, activation) - kept(2, activation)) / 2 / unit, units, 0.2) << activation;
  }
}

// Commands and recipes say where the model is.
TEST(ViT, TheRegistryNamesTheHeader) {
  for (const auto& [type, header] : {std::pair{"vit", "vit"}, {"clip", "clip"}}) {
    const json config = {{"model_type", type}};
    EXPECT_EQ(testing::error_of([&] { (void)models::architecture_of(config, "test"); },
                                ErrorCode::configuration),
              std::string("test: model_type \"") + type +
                  "\" is a model of images, which recipes and commands do not train; use it in "
                  "C++: <tessera/models/" +
                  header + ".h> (docs/cpp-api.md)");
  }
}

}  // namespace
}  // namespace tessera

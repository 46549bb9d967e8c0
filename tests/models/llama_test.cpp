// Llama: Hugging Face's names and shapes, rotary tables, training and gradients.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <numbers>

#include "models/llama/llama.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

json tiny_llama() {
  return {{"model_type", "llama"},    {"vocab_size", 11},
          {"hidden_size", 8},         {"intermediate_size", 12},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 16}};
}

TEST(Llama, HasHuggingFaceNamesAndShapes) {
  json config = tiny_llama();
  config["num_hidden_layers"] = 1;
  config["head_dim"] = 4;  // wider than hidden_size / heads
  const auto model = models::make_language_model(config);
  const std::vector<std::string> wanted = {
      "model.embed_tokens.weight [11, 8]",
      "model.layers.0.input_layernorm.weight [8]",
      "model.layers.0.self_attn.q_proj.weight [16, 8]",
      "model.layers.0.self_attn.k_proj.weight [8, 8]",
      "model.layers.0.self_attn.v_proj.weight [8, 8]",
      "model.layers.0.self_attn.o_proj.weight [8, 16]",
      "model.layers.0.post_attention_layernorm.weight [8]",
      "model.layers.0.mlp.gate_proj.weight [12, 8]",
      "model.layers.0.mlp.up_proj.weight [12, 8]",
      "model.layers.0.mlp.down_proj.weight [8, 12]",
      "model.norm.weight [8]",
      "lm_head.weight [11, 8]",
  };
  EXPECT_EQ(testing::names_and_shapes(*model), wanted);

  config["tie_word_embeddings"] = true;
  const auto tied = models::make_language_model(config);
  EXPECT_EQ(testing::names_and_shapes(*tied).back(), "model.norm.weight [8]");

  config["attention_bias"] = config["mlp_bias"] = true;
  const auto biased = models::make_language_model(config);
  EXPECT_EQ(biased->named_parameters().size(), wanted.size() - 1 + 7);
}

TEST(Llama, HasTheKnownNumbersOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto seven = models::make_language_model({{"model_type", "llama"}});
  EXPECT_EQ(testing::parameter_count(*seven), 6'738'415'616);
  const auto one = models::make_language_model({{"model_type", "llama"},
                                                {"vocab_size", 128256},
                                                {"hidden_size", 2048},
                                                {"intermediate_size", 8192},
                                                {"num_hidden_layers", 16},
                                                {"num_attention_heads", 32},
                                                {"num_key_value_heads", 8},
                                                {"head_dim", 64},
                                                {"tie_word_embeddings", true}});
  EXPECT_EQ(testing::parameter_count(*one), 1'235'814'400);
}

TEST(Llama, LayersAreNamedForWrapPolicies) {
  const auto model = models::make_language_model(tiny_llama());
  int layers = 0;
  for (const auto& [name, module] : model->named_modules()) {
    layers += module->class_name() == model->layer_class() ? 1 : 0;
  }
  EXPECT_EQ(layers, 2);
}

TEST(Llama, LossStartsNearTheUniformDistributionsAndFalls) {
  for (const DType dtype : {float32, float64}) {
    manual_seed(1);
    const nn::ParameterDTypeGuard guard(dtype);
    const auto model = models::make_language_model(tiny_llama());
    const auto [first, last] = testing::losses_of_training(*model, 30);
    EXPECT_NEAR(first, std::log(11.0), 0.1) << name_of(dtype);
    EXPECT_LT(last, 0.5 * first) << name_of(dtype);
  }
}

TEST(Llama, ComputesInTheDtypeOfItsParameters) {
  const nn::ParameterDTypeGuard guard(bfloat16);
  const auto model = models::make_language_model(tiny_llama());
  const auto batch = testing::counting_batch(2, 8, 11);
  EXPECT_EQ(model->forward(batch.ids).dtype(), bfloat16);
  const Tensor loss = model->loss(batch.ids, batch.targets);
  EXPECT_NEAR(loss.item(), std::log(11.0), 0.1);
  loss.backward();
  for (const auto& [name, tensor, shape] : model->named_parameters()) {
    EXPECT_TRUE(tensor.grad().defined()) << name;
  }
}

TEST(Llama, GradientsAgreeWithDifferences) {
  testing::check_model_gradients(tiny_llama());
}

TEST(Llama, GradientsAgreeWithDifferencesInItsOtherForms) {
  json config = tiny_llama();
  config["tie_word_embeddings"] = config["attention_bias"] = config["mlp_bias"] = true;
  config["num_key_value_heads"] = 1;
  config["attention_dropout"] = 0.2;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  testing::check_model_gradients(config);
}

TEST(Llama, RotaryTablesGrowWithoutChangingLogits) {
  manual_seed(5);
  const auto model = models::make_language_model(tiny_llama());
  const auto short_ids = testing::counting_batch(1, 3, 11).ids;
  const std::vector<double> first = model->forward(short_ids).to_vector();
  (void)model->forward(testing::counting_batch(1, 16, 11).ids);  // the tables grow
  EXPECT_EQ(model->forward(short_ids).to_vector(), first);
}

TEST(Rope, FrequenciesFallGeometrically) {
  const auto frequencies = models::rope_frequencies(8, 10000.0, {});
  ASSERT_EQ(frequencies.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(frequencies[i],
                    static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / 4)));
  }
  const auto slower = models::rope_frequencies(8, 10000.0, {.rope_type = "linear", .factor = 4.0});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(slower[i], frequencies[i] / 4);
}

TEST(Rope, Llama3StretchesLongWavelengthsOnly) {
  const models::RopeScaling scaling{.rope_type = "llama3",
                                    .factor = 8.0,
                                    .low_freq_factor = 1.0,
                                    .high_freq_factor = 4.0,
                                    .original_max_position_embeddings = 8192};
  const auto plain = models::rope_frequencies(128, 500000.0, {});
  const auto scaled = models::rope_frequencies(128, 500000.0, scaling);
  int kept = 0;
  int stretched = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / static_cast<double>(plain[i]);
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(scaled[i], plain[i]) << i;
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8) << i;
      ++stretched;
    } else {
      const double share = (8192.0 / wavelength - 1.0) / 3.0;
      EXPECT_NEAR(scaled[i], (1 - share) * plain[i] / 8 + share * plain[i], 1e-6 * plain[i]) << i;
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(stretched, 20);
}

// The middle pair of each kind, against the formula of the paper.
TEST(Rope, YarnStretchesPairsThatTurnSeldom) {
  const models::RopeScaling scaling{
      .rope_type = "yarn", .factor = 4.0, .original_max_position_embeddings = 4096};
  const auto plain = models::rope_frequencies(128, 10000.0, {});
  const auto scaled = models::rope_frequencies(128, 10000.0, scaling);
  // Pairs that turn 32 times and once: 128 ln(4096 / (2 pi 32)) / (2 ln 10000) = 20.9, and 45.0.
  for (std::size_t i = 0; i <= 20; ++i) EXPECT_EQ(scaled[i], plain[i]) << i;
  for (std::size_t i = 46; i < 64; ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 4) << i;
  const double share = (33.0 - 20.0) / (46.0 - 20.0);
  EXPECT_NEAR(scaled[33], plain[33] * (1 - share) + plain[33] / 4 * share, 1e-6 * plain[33]);
}

TEST(Rope, YarnsAttentionFactorGrowsWithTheStretch) {
  models::RopeScaling scaling{.rope_type = "yarn", .factor = 4.0};
  EXPECT_DOUBLE_EQ(models::rope_attention_factor(scaling), 0.1 * std::log(4.0) + 1);
  scaling.mscale = 2.0;
  EXPECT_DOUBLE_EQ(models::rope_attention_factor(scaling), 0.1 * std::log(4.0) + 1);
  scaling.mscale_all_dim = 0.5;
  EXPECT_DOUBLE_EQ(models::rope_attention_factor(scaling),
                   (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  scaling.attention_factor = 1.5;
  EXPECT_DOUBLE_EQ(models::rope_attention_factor(scaling), 1.5);
  scaling.rope_type = "linear";
  EXPECT_DOUBLE_EQ(models::rope_attention_factor(scaling), 1);
  const auto tables = models::make_rope_tables({1.0f}, 2, Device::cpu(), 1.5);
  EXPECT_NEAR(tables.sine.to_vector()[1], 1.5 * std::sin(1.0), 1e-6);
}

TEST(Rope, TablesHoldCosinesAndSinesOfPositionTimesFrequency) {
  const auto tables = models::make_rope_tables({1.0f, 0.25f}, 3);
  EXPECT_EQ(tables.cosine.shape(), (Shape{3, 2}));
  const std::vector<double> cosine = tables.cosine.to_vector();
  const std::vector<double> sine = tables.sine.to_vector();
  for (std::size_t position = 0; position < 3; ++position) {
    EXPECT_NEAR(cosine[2 * position], std::cos(1.0 * static_cast<double>(position)), 1e-7);
    EXPECT_NEAR(sine[2 * position + 1], std::sin(0.25 * static_cast<double>(position)), 1e-7);
  }
}

}  // namespace
}  // namespace tessera

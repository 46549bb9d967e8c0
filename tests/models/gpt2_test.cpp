// GPT-2: Hugging Face's names and shapes, sizes, training and gradients.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "models/gpt2/gpt2.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

json tiny_config() {
  return {{"model_type", "gpt2"}, {"vocab_size", 11},  {"n_positions", 8},
          {"n_embd", 8},          {"n_layer", 2},      {"n_head", 2},
          {"resid_pdrop", 0.0},   {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
}

TEST(Gpt2, HasHuggingFaceNamesAndShapes) {
  json config = tiny_config();
  config["n_layer"] = 1;
  const auto model = models::make_language_model(config);
  const std::vector<std::string> wanted = {
      "transformer.wte.weight [11, 8]",
      "transformer.wpe.weight [8, 8]",
      "transformer.h.0.ln_1.weight [8]",
      "transformer.h.0.ln_1.bias [8]",
      "transformer.h.0.attn.c_attn.weight [8, 24]",
      "transformer.h.0.attn.c_attn.bias [24]",
      "transformer.h.0.attn.c_proj.weight [8, 8]",
      "transformer.h.0.attn.c_proj.bias [8]",
      "transformer.h.0.ln_2.weight [8]",
      "transformer.h.0.ln_2.bias [8]",
      "transformer.h.0.mlp.c_fc.weight [8, 32]",
      "transformer.h.0.mlp.c_fc.bias [32]",
      "transformer.h.0.mlp.c_proj.weight [32, 8]",
      "transformer.h.0.mlp.c_proj.bias [8]",
      "transformer.ln_f.weight [8]",
      "transformer.ln_f.bias [8]",
  };
  EXPECT_EQ(testing::names_and_shapes(*model), wanted);

  config["tie_word_embeddings"] = false;
  const auto untied = models::make_language_model(config);
  EXPECT_EQ(testing::names_and_shapes(*untied).back(), "lm_head.weight [11, 8]");
  EXPECT_EQ(untied->named_parameters().size(), wanted.size() + 1);
}

TEST(Gpt2, HasTheKnownNumbersOfParameters) {
  const DeviceGuard meta(Device::meta());
  const auto small = models::make_language_model({{"model_type", "gpt2"}});
  EXPECT_EQ(testing::parameter_count(*small), 124'439'808);
  const auto bytes = models::make_language_model({{"model_type", "gpt2"},
                                                  {"vocab_size", 256},
                                                  {"n_positions", 256},
                                                  {"n_embd", 384},
                                                  {"n_layer", 6},
                                                  {"n_head", 6}});
  EXPECT_EQ(testing::parameter_count(*bytes), 10'844'160);
}

TEST(Gpt2, BlocksAreNamedForWrapPolicies) {
  const auto model = models::make_language_model(tiny_config());
  int blocks = 0;
  for (const auto& [name, module] : model->named_modules()) {
    if (module->class_name() != model->layer_class()) continue;
    EXPECT_EQ(name, "transformer.h." + std::to_string(blocks));
    ++blocks;
  }
  EXPECT_EQ(blocks, 2);
}

TEST(Gpt2, InitialWeightsHaveTheirDeviations) {
  manual_seed(11);
  json config = tiny_config();
  config["n_embd"] = 64;
  const auto model = models::make_language_model(config);
  for (const auto& [name, tensor, shape] : model->named_parameters()) {
    double mean = 0;
    double square = 0;
    const std::vector<double> numbers = tensor.to_vector();
    for (const double value : numbers) {
      mean += value / static_cast<double>(numbers.size());
      square += value * value / static_cast<double>(numbers.size());
    }
    if (shape.dimensions() == 1) {
      EXPECT_EQ(mean, name.ends_with("bias") ? 0.0 : 1.0) << name;
      EXPECT_EQ(square, mean) << name;
    } else {
      const double deviation =
          name.find("c_proj") == std::string::npos ? 0.02 : 0.02 / std::sqrt(4.0);
      EXPECT_NEAR(std::sqrt(square), deviation, 0.12 * deviation) << name;
      EXPECT_NEAR(mean, 0.0, 0.2 * deviation) << name;
    }
  }
}

TEST(Gpt2, LossStartsNearTheUniformDistributionsAndFalls) {
  for (const DType dtype : {float32, float64}) {
    manual_seed(1);
    const nn::ParameterDTypeGuard guard(dtype);
    const auto model = models::make_language_model(tiny_config());
    const auto [first, last] = testing::losses_of_training(*model, 30);
    EXPECT_NEAR(first, std::log(11.0), 0.1) << name_of(dtype);
    EXPECT_LT(last, 0.5 * first) << name_of(dtype);
  }
}

TEST(Gpt2, ComputesInTheDtypeOfItsParameters) {
  manual_seed(1);
  const auto exact = models::make_language_model(tiny_config());
  const auto batch = testing::counting_batch(2, 8, 11);
  for (const DType dtype : {bfloat16, float16}) {
    const nn::ParameterDTypeGuard guard(dtype);
    manual_seed(1);
    const auto model = models::make_language_model(tiny_config());
    EXPECT_EQ(model->forward(batch.ids).dtype(), dtype);
    const Tensor loss = model->loss(batch.ids, batch.targets);
    EXPECT_EQ(loss.dtype(), float32);
    EXPECT_NEAR(loss.item(), exact->loss(batch.ids, batch.targets).item(), 0.02);
    loss.backward();
    for (const auto& [name, tensor, shape] : model->named_parameters()) {
      ASSERT_TRUE(tensor.grad().defined()) << name;
      EXPECT_EQ(tensor.grad().dtype(), dtype) << name;
    }
  }
}

TEST(Gpt2, DropoutIsActiveInTrainingOnly) {
  manual_seed(1);
  json config = tiny_config();
  config["resid_pdrop"] = config["embd_pdrop"] = config["attn_pdrop"] = 0.3;
  const auto model = models::make_language_model(config);
  const auto batch = testing::counting_batch(2, 8, 11);
  const auto loss = [&](std::uint64_t step) {
    begin_batch({.step = step, .first_sample = 0, .samples = 2});
    return model->loss(batch.ids, batch.targets).item();
  };
  EXPECT_EQ(loss(1), loss(1));
  EXPECT_NE(loss(1), loss(2));
  model->eval();
  EXPECT_EQ(loss(1), loss(2));
}

TEST(Gpt2, GradientsAgreeWithDifferences) {
  testing::check_model_gradients(tiny_config());
}

TEST(Gpt2, GradientsAgreeWithDifferencesInItsOtherForms) {
  json config = tiny_config();
  config["activation_function"] = "gelu";
  config["tie_word_embeddings"] = false;
  config["scale_attn_by_inverse_layer_idx"] = true;
  config["n_inner"] = 12;
  config["resid_pdrop"] = config["embd_pdrop"] = config["attn_pdrop"] = 0.2;
  testing::check_model_gradients(config);
}

TEST(Gpt2, RefusesSequencesBeyondItsPositions) {
  const auto model = models::make_language_model(tiny_config());
  EXPECT_THROW(model->forward(testing::counting_batch(1, 9, 11).ids), std::logic_error);
}

}  // namespace
}  // namespace tessera

// Models whose linear layers stay 8-bit integers in memory: logits near those of the decoded
// weights, the memory of their parameters, and the same from a whole forward as from a cache.
#include "models/load/int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "checkpoint/convert/convert.h"
#include "checkpoint/safetensors/safetensors.h"
#include "engine/autograd.h"
#include "models/generate.h"
#include "models/load/adapter.h"
#include "models/load/load.h"
#include "models/model_testing.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

nlohmann::json int8_llama() {
  return {{"model_type", "llama"},    {"vocab_size", 23},         {"hidden_size", 64},
          {"intermediate_size", 96},  {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"initializer_range", 0.3}, {"max_position_embeddings", 32}};
}

nlohmann::json int8_gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 23}, {"n_positions", 32},       {"n_embd", 64},
          {"n_layer", 2},         {"n_head", 4},      {"initializer_range", 0.3}};
}

class Int8Model : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const nlohmann::json config = GetParam() == std::string("gpt2") ? int8_gpt2() : int8_llama();
    manual_seed(3);
    const auto model = models::make_language_model(config);
    std::vector<checkpoint::TensorToWrite> tensors;
    for (const auto& parameter : model->named_parameters()) {
      const auto sizes = parameter.shape.sizes();
      tensors.push_back(
          {{parameter.name, float32, {sizes.begin(), sizes.end()}}, parameter.tensor.data()});
    }
    fs::create_directories(plain());
    checkpoint::write_safetensors(plain() / "model.safetensors", tensors);
    std::ofstream(plain() / "config.json") << model->config().dump();
    checkpoint::ConvertOptions options;
    options.to = "hf";
    options.int8 = true;
    options.lies_in_out = models::weights_in_out;
    checkpoint::convert(plain(), small(), options);
    options.int8 = false;
    checkpoint::convert(small(), decoded(), options);
  }
  static std::unique_ptr<models::LanguageModel> load(const fs::path& folder,
                                                     DType dtype = float32) {
    return models::load_language_model(folder.string(), dtype, Device::cpu()).model;
  }
  static std::vector<float> logits_of(models::LanguageModel& model) {
    const NoGradGuard no_grad;
    const Tensor logits = cast(model.forward(testing::counting_batch(2, 9, 23).ids), float32);
    return {logits.data_as<float>(), logits.data_as<float>() + logits.elements()};
  }
  // |a - b| / |b|
  static double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
      difference += std::pow(double{a[i]} - b[i], 2);
      size += double{b[i]} * b[i];
    }
    return std::sqrt(difference / size);
  }
  static std::int64_t bytes_of(const nn::Module& model) {
    std::int64_t bytes = 0;
    for (const auto& parameter : model.named_parameters()) {
      bytes +=
          parameter.shape.elements() * static_cast<std::int64_t>(size_of(parameter.tensor.dtype()));
    }
    return bytes;
  }
  [[nodiscard]] fs::path plain() const { return folder_.path() / "plain"; }
  [[nodiscard]] fs::path small() const { return folder_.path() / "int8"; }
  [[nodiscard]] fs::path adapter() const { return folder_.path() / "adapter"; }
  [[nodiscard]] fs::path decoded() const { return folder_.path() / "decoded"; }

 private:
  TemporaryFolder folder_;
};

TEST_P(Int8Model, LogitsAreNearThoseOfTheDecodedWeights) {
  const auto int8 = load(small());
  const auto wide = load(decoded());
  const std::vector<float> expected = logits_of(*wide);
  const double apart = distance(logits_of(*int8), expected);
  EXPECT_LT(apart, 0.06);  // weights of this deviation make large scores of attention
  EXPECT_GT(apart, 0) << "the products had no integers";
  EXPECT_LT(distance(expected, logits_of(*load(plain()))), 0.03);
  EXPECT_LT(distance(logits_of(*load(small(), bfloat16)), expected), 0.06);
}

TEST_P(Int8Model, LinearLayersTakeAQuarter) {
  const auto int8 = load(small());
  std::size_t integers = 0;
  for (const auto& parameter : int8->named_parameters()) {
    integers += parameter.tensor.dtype() == uint8 ? 1 : 0;
  }
  EXPECT_EQ(integers, GetParam() == std::string("gpt2") ? 8u : 14u);
  EXPECT_LT(bytes_of(*int8), bytes_of(*load(plain())) * 2 / 5);
}

TEST_P(Int8Model, ACacheGivesTheTokensOfAWholeForward) {
  const auto model = load(small());
  std::vector<std::int64_t> expected{3, 7, 1};
  const auto tokens = models::generate(*model, expected, {.max_new_tokens = 10});
  const NoGradGuard no_grad;
  while (expected.size() < tokens.size()) {
    const Tensor logits =
        model->forward(Tensor::from(expected, {1, static_cast<std::int64_t>(expected.size())}));
    const auto vocabulary = static_cast<std::size_t>(logits.size(2));
    const float* const last = logits.data_as<float>() + (expected.size() - 1) * vocabulary;
    expected.push_back(std::max_element(last, last + vocabulary) - last);
  }
  EXPECT_EQ(tokens, expected);
}

// DoRA's norms are those of numbers: its layers are decoded, and the others stay integers.
TEST_P(Int8Model, LayersWithDoraAreDecoded) {
  const bool gpt2 = GetParam() == std::string("gpt2");
  const LoraOptions lora{
      .rank = 2, .dora = true, .target_modules = {gpt2 ? "c_attn" : "gate_proj"}};
  const auto model = load(decoded());
  models::add_lora(*model, lora);
  std::vector<checkpoint::TensorToWrite> tensors;
  for (const auto& parameter : model->named_parameters()) {
    if (!is_lora_parameter(parameter.name)) continue;
    Tensor values = parameter.tensor;
    if (parameter.name.ends_with("lora_B.weight"))
      values.copy_from(Tensor::full(values.shape(), 0.1));
    const auto sizes = parameter.shape.sizes();
    tensors.push_back({{std::string(checkpoint::peft_prefix) + parameter.name,
                        float32,
                        {sizes.begin(), sizes.end()}},
                       values.data()});
  }
  fs::create_directories(adapter());
  checkpoint::write_safetensors(adapter() / checkpoint::peft_tensors_file, tensors);
  const auto adapted = [&](const fs::path& base) {
    std::ofstream(adapter() / checkpoint::peft_config_file)
        << to_text(models::peft_config(*model, lora, base.string()));
    return load(adapter());
  };
  const auto int8 = adapted(small());
  std::size_t integers = 0;
  for (const auto& parameter : int8->named_parameters())
    integers += parameter.tensor.dtype() == uint8 ? 1 : 0;
  EXPECT_EQ(integers, gpt2 ? 6u : 12u);
  const std::vector<float> expected = logits_of(*adapted(decoded()));
  EXPECT_LT(distance(logits_of(*int8), expected), 0.06);
  EXPECT_GT(distance(logits_of(*load(decoded())), expected), 0.1);
}

TEST_P(Int8Model, GradientsAreRefused) {
  const auto model = load(small());
  EXPECT_THROW(model->forward(testing::counting_batch(2, 9, 23).ids), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Families, Int8Model, ::testing::Values("llama", "gpt2"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace tessera

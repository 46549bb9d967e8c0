// Adapters on every model give the results of the product merged into the weights, in every code
// path that fuses a linear layer with its neighbours.
#include "models/load/adapter.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/support.h"
#include "engine/autograd.h"
#include "models/encoder_testing.h"
#include "models/generate.h"
#include "models/model_testing.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::int64_t adapted_vocabulary = 50;

json adapted_decoder(const std::string& type) {
  if (type == "gpt2") {
    return {{"model_type", type}, {"vocab_size", 50}, {"n_positions", 40},       {"n_embd", 24},
            {"n_layer", 2},       {"n_head", 4},      {"initializer_range", 0.3}};
  }
  return {{"model_type", type},       {"vocab_size", 50},
          {"hidden_size", 32},        {"intermediate_size", 48},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 40},
          {"initializer_range", 0.3}};
}

std::vector<nn::LinearImpl*> adapted_layers(nn::Module& module) {
  std::vector<nn::LinearImpl*> layers;
  for (const auto& [name, part] : module.named_modules()) {
    auto* layer = dynamic_cast<nn::LinearImpl*>(part);
    if (layer != nullptr && layer->has_lora()) layers.push_back(layer);
  }
  return layers;
}

// B is initially zero, and a magnitude the norm of its row, which would hide all errors.
void draw_second_factors(nn::Module& module) {
  std::uint64_t number = 0;
  for (nn::LinearImpl* layer : adapted_layers(module)) {
    Tensor b = layer->lora_b()->weight();
    Initializer draw = nn::normal(0, 0.3);
    draw.seed = 17;
    draw.stream = number++;
    draw.fill(b.data(), b.dtype(), 0, b.elements());
    if (!layer->has_dora()) continue;
    Tensor magnitude = layer->lora_magnitude();
    Tensor factor = Tensor::empty(magnitude.shape(), magnitude.dtype());
    draw = nn::uniform(0.7, 1.4);
    draw.seed = 17;
    draw.stream = number++;
    draw.fill(factor.data(), factor.dtype(), 0, factor.elements());
    magnitude.copy_from((magnitude * factor).detach());
  }
}

void merge(nn::Module& module) {
  const NoGradGuard no_grad;
  for (nn::LinearImpl* layer : adapted_layers(module)) {
    const Tensor a = layer->lora_a()->weight();
    Tensor b = layer->lora_b()->weight();
    const std::vector<double> left = b.to_vector();
    const std::vector<double> right = a.to_vector();
    Tensor weight = layer->weight();
    const std::int64_t rank = a.size(0);
    const std::int64_t in = a.size(1);
    const std::int64_t out = b.size(0);
    auto* const values = weight.data_as<float>();
    const std::vector<double> magnitude =
        layer->has_dora() ? layer->lora_magnitude().to_vector() : std::vector<double>();
    for (std::int64_t o = 0; o < out; ++o) {
      const bool out_first = layer->layout() == WeightLayout::out_in;
      const auto element = [&](std::int64_t i) -> float& {
        return values[out_first ? o * in + i : i * out + o];
      };
      double squares = 0;
      for (std::int64_t i = 0; i < in; ++i) {
        double sum = 0;
        for (std::int64_t k = 0; k < rank; ++k) {
          sum += left[static_cast<std::size_t>(o * rank + k)] *
                 right[static_cast<std::size_t>(k * in + i)];
        }
        element(i) += static_cast<float>(layer->lora_scaling() * sum);
        squares += static_cast<double>(element(i)) * element(i);
      }
      if (magnitude.empty()) continue;
      const double factor = magnitude[static_cast<std::size_t>(o)] / std::sqrt(squares);
      for (std::int64_t i = 0; i < in; ++i) element(i) = static_cast<float>(element(i) * factor);
    }
    b.copy_from(Tensor::zeros(b.shape()));
    if (layer->has_dora()) layer->begin_magnitude();
  }
}

void expect_close_values(const std::vector<double>& ours, const std::vector<double>& wanted) {
  ASSERT_EQ(ours.size(), wanted.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_NEAR(ours[i], wanted[i], 2e-4 * (1 + std::fabs(wanted[i]))) << i;
  }
}

void expect_results_of_merged(const std::string& type, const std::string& layers, bool dora) {
  const testing::OneThread one_thread;
  manual_seed(11);
  const auto model = models::make_language_model(adapted_decoder(type));
  models::add_lora(*model, {.rank = 3, .alpha = 6, .dora = dora, .target_pattern = layers});
  draw_second_factors(*model);
  model->eval();
  const auto batch = testing::counting_batch(2, 9, adapted_vocabulary);
  const auto decoded = [&] {
    const NoGradGuard no_grad;
    models::KeyValueCache cache = model->make_cache(9);
    const testing::CountingBatch one = testing::counting_batch(1, 9, adapted_vocabulary);
    return model->decode(models::DecodingBatch(one.ids, {&cache})).to_vector();
  };
  const std::vector<double> logits = model->forward(batch.ids).to_vector();
  const double loss = model->loss(batch.ids, batch.targets).item();
  const std::vector<double> next = decoded();
  merge(*model);
  expect_close_values(logits, model->forward(batch.ids).to_vector());
  EXPECT_NEAR(loss, model->loss(batch.ids, batch.targets).item(), 1e-4);
  expect_close_values(next, decoded());
}

class AdaptedDecoder : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(AdaptedDecoder, GivesTheResultsOfMergedWeights) {
  const auto& [type, layers] = GetParam();
  for (const bool dora : {false, true}) expect_results_of_merged(type, layers, dora);
}

INSTANTIATE_TEST_SUITE_P(
    EveryPath, AdaptedDecoder,
    ::testing::Values(std::tuple{"gpt2", "all-linear"}, std::tuple{"gpt2", ".*c_fc"},
                      std::tuple{"gpt2", ".*attn.c_attn"}, std::tuple{"llama", "all-linear"},
                      std::tuple{"llama", ".*(up|gate)_proj"}, std::tuple{"llama", "lm_head"},
                      std::tuple{"qwen2", "all-linear"}, std::tuple{"mistral", "all-linear"},
                      std::tuple{"qwen3", "all-linear"}, std::tuple{"olmo2", "all-linear"},
                      std::tuple{"smollm3", "all-linear"}, std::tuple{"phi3", "all-linear"},
                      std::tuple{"phi3", ".*(qkv|gate_up)_proj"},
                      std::tuple{"mixtral", "all-linear"}, std::tuple{"gemma3_text", "all-linear"},
                      std::tuple{"qwen3_moe", "all-linear"}, std::tuple{"gpt_oss", "all-linear"}));

TEST(AdaptedModels, EncodersGiveTheResultsOfMergedWeights) {
  const testing::OneThread one_thread;
  for (const std::string type : {"bert", "mpnet", "roberta", "distilbert", "modernbert", "t5"}) {
    for (const std::string layers :
         {"all-linear", R"(.*(intermediate\.dense|ffn\.lin1|mlp\.Wi|DenseReluDense\.wi))",
          R"(.*layer.*(query|q|q_lin|attn\.Wqkv))"}) {
      for (const bool dora : {false, true}) {
        manual_seed(11);
        const auto model = models::make_mean_pooling_encoder(testing::tiny_encoder(type), "test");
        models::add_lora(*model, {.rank = 3, .alpha = 6, .dora = dora, .target_pattern = layers});
        draw_second_factors(*model);
        model->eval();
        const models::TokenBatch batch = testing::encoder_batch({7, 3, 12}, 12);
        const std::vector<double> before = model->forward(batch).to_vector();
        merge(*model);
        expect_close_values(before, model->forward(batch).to_vector());
      }
    }
  }
}

// Gradients of the adapters, including their dropout; the base has none.
TEST(AdaptedModels, GradientsAgreeWithDifferences) {
  for (const std::string type : {"gpt2", "llama"}) {
    manual_seed(7);
    const nn::ParameterDTypeGuard fp64(float64);
    const auto model = models::make_language_model(adapted_decoder(type));
    models::add_lora(*model,
                     {.rank = 2, .alpha = 4, .dropout = 0.2, .target_pattern = "all-linear"});
    draw_second_factors(*model);
    std::vector<Tensor> leaves;
    for (const auto& parameter : model->named_parameters()) {
      if (is_lora_parameter(parameter.name)) leaves.push_back(parameter.tensor);
    }
    const auto batch = testing::counting_batch(2, 5, adapted_vocabulary);
    const auto loss = [&] {
      begin_batch({.step = 3, .first_sample = 0, .samples = 2});
      return model->loss(batch.ids, batch.targets);
    };
    testing::check_gradients(loss, leaves, {.step = 1e-5, .tolerance = 5e-8, .max_elements = 6});
    for (const auto& parameter : model->named_parameters()) {
      EXPECT_TRUE(is_lora_parameter(parameter.name) || !parameter.tensor.grad().defined());
    }
  }
}

// The dropout of a sequence's adapters does not depend on the other sequences.
TEST(AdaptedModels, DropoutBelongsToTheSequence) {
  const testing::OneThread one_thread;
  json config = testing::tiny_encoder("bert");
  config["hidden_dropout_prob"] = 0;
  config["attention_probs_dropout_prob"] = 0;
  for (const bool dora : {false, true}) {
    manual_seed(11);
    const auto model = models::make_mean_pooling_encoder(config, "test");
    models::add_lora(*model,
                     {.rank = 3, .dropout = 0.5, .dora = dora, .target_pattern = "all-linear"});
    draw_second_factors(*model);
    begin_batch({4, 0, 2});
    const Tensor two = model->forward(testing::encoder_batch({5, 8}, 8));
    begin_batch({4, 0, 2});
    const Tensor longer = model->forward(testing::encoder_batch({5, 12}, 12));
    EXPECT_EQ(testing::of_sequence(two, 0), testing::of_sequence(longer, 0));
  }
}

// The fused paths of decoders, with the norms as constants.
TEST(AdaptedModels, GradientsOfDoraAgreeWithDifferencesAtConstantNorms) {
  for (const std::string type : {"gpt2", "llama"}) {
    manual_seed(7);
    const nn::ParameterDTypeGuard fp64(float64);
    const auto model = models::make_language_model(adapted_decoder(type));
    models::add_lora(
        *model,
        {.rank = 2, .alpha = 4, .dropout = 0.2, .dora = true, .target_pattern = "all-linear"});
    draw_second_factors(*model);
    nn::keep_adapted_norms(*model);
    std::vector<Tensor> leaves;
    for (const auto& parameter : model->named_parameters()) {
      if (is_lora_parameter(parameter.name)) leaves.push_back(parameter.tensor);
    }
    const auto batch = testing::counting_batch(2, 5, adapted_vocabulary);
    const auto loss = [&] {
      begin_batch({.step = 3, .first_sample = 0, .samples = 2});
      return model->loss(batch.ids, batch.targets);
    };
    testing::check_gradients(loss, leaves, {.step = 1e-5, .tolerance = 5e-8, .max_elements = 4});
  }
}

TEST(PeftConfigOfAModel, HasTheKeysThatPeftNeeds) {
  manual_seed(11);
  const auto gpt2 = models::make_language_model(adapted_decoder("gpt2"));
  const LoraOptions options{.rank = 2, .target_modules = {"c_attn"}};
  models::add_lora(*gpt2, options);
  const checkpoint::PeftConfig config = models::peft_config(*gpt2, options, "base");
  EXPECT_TRUE(config.fan_in_fan_out);
  EXPECT_EQ(config.task_type, "CAUSAL_LM");
  const auto llama = models::make_language_model(adapted_decoder("llama"));
  const LoraOptions others{.rank = 2, .target_modules = {"q_proj"}};
  models::add_lora(*llama, others);
  EXPECT_FALSE(models::peft_config(*llama, others, "base").fan_in_fan_out);
}

// PEFT's layers_to_transform: the config that is written for the adapter names the same layers and
// no others.
TEST(PeftConfigOfAModel, NamesTheLayersWhereTheListMatchesMore) {
  const checkpoint::testing::TemporaryFolder folder;
  const auto write = [&](const std::vector<std::string>& layers, const json& chosen) {
    json config = {{"peft_type", "LORA"}, {"r", 2}, {"target_modules", {"c_attn"}}};
    config.update(chosen);
    checkpoint::testing::write_all(folder.path() / checkpoint::peft_config_file, config.dump());
    const std::vector<float> values(2 * 72);
    std::vector<checkpoint::TensorToWrite> tensors;
    for (const std::string& layer : layers) {
      const std::string name = "base_model.model.transformer." + layer;
      tensors.push_back({{name + ".lora_A.weight", float32, {2, 24}}, values.data()});
      tensors.push_back({{name + ".lora_B.weight", float32, {72, 2}}, values.data()});
    }
    checkpoint::write_safetensors(folder.path() / checkpoint::peft_tensors_file, tensors);
  };
  const auto targets = [&] {
    const auto model = models::make_language_model(adapted_decoder("gpt2"));
    const LoraOptions options = models::add_lora_of(folder.path().string(), *model);
    return models::peft_config(*model, options, "base").target_modules;
  };
  const std::string first = "h.0.attn.c_attn", second = "h.1.attn.c_attn";
  write({second}, {{"layers_to_transform", {1}}});
  EXPECT_EQ(targets(), std::vector<std::string>{"transformer." + second});
  write({first}, {{"exclude_modules", "h.1.*"}});
  EXPECT_EQ(targets(), std::vector<std::string>{"transformer." + first});
  write({first, second}, json::object());
  EXPECT_EQ(targets(), std::vector<std::string>{"c_attn"});
}

// A tensor without elements has any number of rows in no bytes.
TEST(AdapterBound, TheFactorsHaveTheLayersInputs) {
  const checkpoint::testing::TemporaryFolder folder;
  const json config = {{"peft_type", "LORA"}, {"r", 1 << 20}, {"target_modules", {"c_attn"}}};
  checkpoint::testing::write_all(folder.path() / checkpoint::peft_config_file, config.dump());
  const std::string name = "base_model.model.transformer.h.0.attn.c_attn";
  const float none = 0;
  checkpoint::write_safetensors(folder.path() / checkpoint::peft_tensors_file,
                                {{{name + ".lora_A.weight", float32, {1 << 20, 0}}, &none},
                                 {{name + ".lora_B.weight", float32, {0, 1 << 20}}, &none}});
  const auto model = models::make_language_model(adapted_decoder("gpt2"));
  try {
    (void)models::add_lora_of(folder.path().string(), *model);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::checkpoint);
    EXPECT_NE(std::string(error.what()).find("has shape [1048576, 0] for a layer of 24 inputs"),
              std::string::npos)
        << error.what();
  }
}

// GPT-2's layers are stored as [in, out], but not its head; the other models have no such layers.
TEST(WeightsInOut, FollowsTheArchitecture) {
  const auto gpt2 = models::weights_in_out(adapted_decoder("gpt2").dump());
  EXPECT_TRUE(gpt2.at("transformer.h.1.attn.c_proj.weight"));
  EXPECT_TRUE(gpt2.at("h.1.attn.c_proj.weight"));
  for (const auto& [name, in_out] : models::weights_in_out(adapted_decoder("llama").dump()))
    EXPECT_FALSE(in_out) << name;
  EXPECT_FALSE(models::weights_in_out(testing::tiny_encoder("bert").dump()).empty());
  EXPECT_TRUE(models::weights_in_out(R"({"model_type": "phi"})").empty());
}

}  // namespace
}  // namespace tessera

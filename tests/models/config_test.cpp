// Configurations: those of transformers are read, written back and refused by name.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "models/config/config_reader.h"
#include "models/model_testing.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using nlohmann::json;

json gpt2_config() {
  return {{"model_type", "gpt2"}, {"vocab_size", 11}, {"n_positions", 8},
          {"n_embd", 8},          {"n_layer", 1},     {"n_head", 2}};
}
json llama_config() {
  return {{"model_type", "llama"},    {"vocab_size", 11},
          {"hidden_size", 8},         {"intermediate_size", 12},
          {"num_hidden_layers", 1},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 16}};
}

// Building must fail with the code and a message that contains all of `parts`.
void expect_refused(const json& config, const std::vector<std::string>& parts) {
  const DeviceGuard meta(Device::meta());
  SCOPED_TRACE(config.dump());
  const std::string message =
      testing::error_of([&] { (void)models::make_language_model(config, "folder/config.json"); },
                        ErrorCode::configuration);
  EXPECT_EQ(message.find("folder/config.json: "), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

// The Llama of the tests as another architecture of the same structure.
json decoder_config(const std::string& model_type) {
  json config = llama_config();
  config["model_type"] = model_type;
  return config;
}

json with(json config, const std::string& key, json value) {
  config[key] = std::move(value);
  return config;
}

TEST(ModelConfig, AModelsConfigurationBuildsItAgain) {
  const DeviceGuard meta(Device::meta());
  for (const json& config :
       {gpt2_config(), llama_config(), with(gpt2_config(), "tie_word_embeddings", false),
        with(llama_config(), "attention_bias", true), with(llama_config(), "head_dim", 6),
        decoder_config("mistral"), with(decoder_config("mistral"), "sliding_window", nullptr),
        decoder_config("qwen2"), decoder_config("qwen3"), decoder_config("olmo2"),
        with(decoder_config("smollm3"), "no_rope_layers", {0, 1}),
        with(decoder_config("phi3"), "rope_scaling", nullptr),
        with(decoder_config("gemma3_text"), "sliding_window_pattern", 2),
        with(decoder_config("gemma3_text"), "layer_types", {"sliding_attention"}),
        with(decoder_config("qwen3"), "rope_scaling",
             {{"rope_type", "yarn"},
              {"factor", 4.0},
              {"original_max_position_embeddings", 4},
              {"beta_fast", 8.0},
              {"truncate", false}})}) {
    const auto model = models::make_language_model(config);
    const json written = model->config(bfloat16);
    for (const auto& [key, value] : config.items()) EXPECT_EQ(written.at(key), value) << key;
    const auto again = models::make_language_model(written);
    EXPECT_EQ(again->config(bfloat16), written);
    EXPECT_EQ(testing::names_and_shapes(*again), testing::names_and_shapes(*model));
  }
}

TEST(ModelConfig, WritesTheKeysThatTransformersNeeds) {
  const DeviceGuard meta(Device::meta());
  const json gpt2 = models::make_language_model(gpt2_config())->config();
  EXPECT_EQ(gpt2["architectures"], json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(gpt2["model_type"], "gpt2");
  EXPECT_EQ(gpt2["torch_dtype"], "float32");
  EXPECT_EQ(gpt2["n_inner"], 32);
  EXPECT_TRUE(gpt2["bos_token_id"].is_null() && gpt2["eos_token_id"].is_null());
  const json llama = models::make_language_model(llama_config())->config(bfloat16);
  EXPECT_EQ(llama["architectures"], json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(llama["torch_dtype"], "bfloat16");
  EXPECT_EQ(llama["head_dim"], 2);
  EXPECT_EQ(llama["hidden_act"], "silu");
  EXPECT_TRUE(llama["rope_scaling"].is_null());
}

TEST(ModelConfig, MistralAndQwen2AreLlamasWithOtherBiasesAndNames) {
  const DeviceGuard meta(Device::meta());
  const auto mistral = models::make_language_model(decoder_config("mistral"));
  EXPECT_EQ(mistral->config()["architectures"], json::array({"MistralForCausalLM"}));
  EXPECT_EQ(mistral->layer_class(), "MistralDecoderLayer");
  EXPECT_EQ(testing::names_and_shapes(*mistral),
            testing::names_and_shapes(*models::make_language_model(llama_config())));
  const auto qwen2 = models::make_language_model(decoder_config("qwen2"));
  EXPECT_EQ(qwen2->config()["architectures"], json::array({"Qwen2ForCausalLM"}));
  std::vector<std::string> biases;
  for (const std::string& line : testing::names_and_shapes(*qwen2)) {
    if (line.find(".bias") != std::string::npos) biases.push_back(line);
  }
  EXPECT_EQ(biases, (std::vector<std::string>{"model.layers.0.self_attn.q_proj.bias [8]",
                                              "model.layers.0.self_attn.k_proj.bias [4]",
                                              "model.layers.0.self_attn.v_proj.bias [4]"}));
  bool found = false;
  for (const auto& [name, module] : qwen2->named_modules()) {
    found = found || module->class_name() == "Qwen2DecoderLayer";
  }
  EXPECT_TRUE(found);
}

// Files may omit a key where the default of their class applies.
TEST(ModelConfig, MissingKeyHeadsAreThoseOfTheArchitecture) {
  const DeviceGuard meta(Device::meta());
  const auto heads_of = [](const std::string& model_type, const json& value) {
    json config = decoder_config(model_type);
    config["hidden_size"] = 64;
    config["num_attention_heads"] = 32;
    config["head_dim"] = 2;
    config.erase("num_key_value_heads");
    if (!value.is_discarded()) config["num_key_value_heads"] = value;
    return models::make_language_model(config)->config()["num_key_value_heads"].get<int>();
  };
  const json absent(json::value_t::discarded);
  EXPECT_EQ(heads_of("mistral", absent), 8);
  EXPECT_EQ(heads_of("qwen2", absent), 32);
  EXPECT_EQ(heads_of("llama", absent), 32);
  EXPECT_EQ(heads_of("qwen3", absent), 32);
  EXPECT_EQ(heads_of("olmo2", absent), 32);
  EXPECT_EQ(heads_of("smollm3", absent), 4);
  EXPECT_EQ(heads_of("phi3", absent), 32);
  for (const char* model_type :
       {"mistral", "qwen2", "llama", "qwen3", "olmo2", "smollm3", "phi3"}) {
    EXPECT_EQ(heads_of(model_type, nullptr), 32) << model_type;
    EXPECT_EQ(heads_of(model_type, 4), 4) << model_type;
  }
}

TEST(ModelConfig, ASlidingWindowLeavesTheModelsPositions) {
  const DeviceGuard meta(Device::meta());
  const json mistral = decoder_config("mistral");
  EXPECT_EQ(models::make_language_model(mistral)->positions(), 16);
  EXPECT_EQ(models::make_language_model(mistral)->config()["sliding_window"], 4096);
  const auto narrow = models::make_language_model(with(mistral, "sliding_window", 5));
  EXPECT_EQ(narrow->positions(), 16);
  EXPECT_EQ(narrow->config()["sliding_window"], 5);
  EXPECT_EQ(models::make_language_model(with(mistral, "sliding_window", nullptr))->positions(), 16);
  expect_refused(with(mistral, "sliding_window", 0), {"sliding_window is 0"});
  expect_refused(with(decoder_config("qwen2"), "use_sliding_window", true),
                 {"use_sliding_window = true is not supported"});
}

TEST(ModelConfig, AModelOfAnotherKindIsRefused) {
  const DeviceGuard meta(Device::meta());
  EXPECT_EQ(models::make_model(gpt2_config())->config()["model_type"], "gpt2");
  EXPECT_EQ(testing::error_of(
                [] { (void)models::make_text_encoder(gpt2_config(), "folder/config.json"); },
                ErrorCode::configuration),
            "folder/config.json: model_type \"gpt2\" is a language model; an encoder of "
            "texts is required here");
}

TEST(ModelConfig, KeepsUnusedKeys) {
  const DeviceGuard meta(Device::meta());
  json config = with(gpt2_config(), "eos_token_id", 5);
  config["task_specific_params"] = {{"text-generation", {{"max_length", 50}}}};
  config["dtype"] = "bfloat16";
  const json written = models::make_language_model(config)->config();
  EXPECT_EQ(written["eos_token_id"], 5);
  EXPECT_EQ(written["task_specific_params"], config["task_specific_params"]);
  EXPECT_FALSE(written.contains("dtype"));
  EXPECT_EQ(written["torch_dtype"], "float32");
}

TEST(ModelConfig, ReadsRotaryScalingInBothSpellings) {
  const DeviceGuard meta(Device::meta());
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 4}};
  json older = with(llama_config(), "rope_scaling", llama3);
  older["rope_theta"] = 500000.0;
  json newer = with(llama_config(), "rope_parameters", llama3);
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  const json written = models::make_language_model(older)->config();
  EXPECT_EQ(written["rope_scaling"], llama3);
  EXPECT_EQ(written["rope_theta"], 500000.0);
  EXPECT_EQ(models::make_language_model(newer)->config(), written);
  const json oldest = with(llama_config(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}});
  EXPECT_EQ(models::make_language_model(oldest)->config()["rope_scaling"]["rope_type"], "linear");
  const json plain =
      with(llama_config(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}});
  EXPECT_TRUE(models::make_language_model(plain)->config()["rope_scaling"].is_null());
}

TEST(ModelConfig, RefusesByName) {
  expect_refused(json::array(), {"array"});
  expect_refused(json::object(), {"model_type is missing"});
  expect_refused({{"model_type", "bart"}}, {"bart", "gpt2", "llama"});
  expect_refused(with(gpt2_config(), "n_embd", 9), {"n_embd = 9", "n_head = 2"});
  expect_refused(with(gpt2_config(), "n_layer", "six"), {"n_layer", "\"six\"", "whole number"});
  expect_refused(with(gpt2_config(), "n_layer", 0), {"n_layer is 0"});
  expect_refused(with(gpt2_config(), "n_layer", 2.5), {"n_layer is 2.5"});
  expect_refused(with(gpt2_config(), "vocab_size", -1), {"vocab_size is -1"});
  expect_refused(with(gpt2_config(), "vocab_size", 5'000'000'000), {"vocab_size is 5000000000"});
  expect_refused(with(gpt2_config(), "attn_pdrop", 1), {"attn_pdrop", "below 1"});
  expect_refused(with(gpt2_config(), "layer_norm_epsilon", 0), {"layer_norm_epsilon", "above 0"});
  expect_refused(with(gpt2_config(), "layer_norm_epsilon", "small"),
                 {"layer_norm_epsilon", "number"});
  expect_refused(with(gpt2_config(), "activation_function", "swish"), {"swish", "gelu_new"});
  expect_refused(with(gpt2_config(), "activation_function", 3),
                 {"activation_function is 3", "text"});
  expect_refused(with(gpt2_config(), "tie_word_embeddings", "yes"),
                 {"tie_word_embeddings", "true or false"});
  expect_refused(with(gpt2_config(), "add_cross_attention", true), {"add_cross_attention"});
  expect_refused(with(llama_config(), "hidden_act", "gelu"), {"hidden_act", "gelu", "silu"});
  expect_refused(with(llama_config(), "num_key_value_heads", 3), {"num_key_value_heads = 3"});
  expect_refused(with(llama_config(), "rope_scaling", {{"factor", 2}}),
                 {"rope_scaling.rope_type is missing", "factor"});
  expect_refused(with(llama_config(), "hidden_size", 10), {"hidden_size = 10"});
  expect_refused(with(llama_config(), "head_dim", 3), {"head_dim = 3"});
  expect_refused(with(llama_config(), "rope_scaling", "yarn"), {"rope_scaling", "object"});
  expect_refused(with(llama_config(), "rope_scaling", {{"rope_type", "dynamic"}}),
                 {"rope_scaling", "dynamic", "llama3"});
  expect_refused(with(llama_config(), "rope_scaling", {{"rope_type", "yarn"}}),
                 {"factor is missing for rope_type yarn"});
  expect_refused(with(llama_config(), "rope_scaling", {{"rope_type", "linear"}}),
                 {"factor is missing"});
  expect_refused(with(llama_config(), "rope_parameters",
                      {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 4},
                       {"high_freq_factor", 4}}),
                 {"rope_parameters", "high_freq_factor"});
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  for (const std::string& pattern : patterns) {
    if (checkpoint::matches_name(pattern, name)) return true;
  }
  return false;
}

TEST(HuggingFaceNames, CoverBothNamesOfGpt2) {
  const DeviceGuard meta(Device::meta());
  const auto names = models::make_language_model(gpt2_config())->hugging_face_names();
  EXPECT_EQ(names.aliases("transformer.h.0.ln_1.weight"),
            (std::vector<std::string>{"transformer.h.0.ln_1.weight", "h.0.ln_1.weight"}));
  EXPECT_EQ(names.aliases("lm_head.weight"), (std::vector<std::string>{"lm_head.weight"}));
  EXPECT_TRUE(matches_any(names.ignored, "h.11.attn.bias"));
  EXPECT_TRUE(matches_any(names.ignored, "transformer.h.0.attn.masked_bias"));
  EXPECT_TRUE(matches_any(names.ignored, "lm_head.weight"));
  EXPECT_FALSE(matches_any(names.ignored, "h.0.attn.c_attn.bias"));
  const json untied = with(gpt2_config(), "tie_word_embeddings", false);
  EXPECT_FALSE(matches_any(models::make_language_model(untied)->hugging_face_names().ignored,
                           "lm_head.weight"));
}

TEST(HuggingFaceNames, CoverLlama) {
  const DeviceGuard meta(Device::meta());
  const auto names = models::make_language_model(llama_config())->hugging_face_names();
  EXPECT_EQ(names.aliases("model.norm.weight"),
            (std::vector<std::string>{"model.norm.weight", "norm.weight"}));
  EXPECT_TRUE(matches_any(names.ignored, "model.layers.3.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(matches_any(names.ignored, "model.rotary_emb.inv_freq"));
  EXPECT_FALSE(matches_any(names.ignored, "lm_head.weight"));
  const json tied = with(llama_config(), "tie_word_embeddings", true);
  EXPECT_TRUE(matches_any(models::make_language_model(tied)->hugging_face_names().ignored,
                          "lm_head.weight"));
}

}  // namespace
}  // namespace tessera

// Weights that config.json does not describe are refused before a GGUF file is written.
#include <gtest/gtest.h>

#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

class GgufShapes : public ::testing::Test {
 protected:
  std::string refusal(const std::vector<NamedShape>& tensors, const nlohmann::json& config) {
    const fs::path source = folder_.path() / "model";
    fs::remove_all(source);
    write_small_model(source, tensors, config);
    const fs::path out = folder_.path() / "m.gguf";
    std::string text = error_of([&] { (void)convert(source, out, {.to = "gguf"}); });
    EXPECT_FALSE(fs::exists(out));
    return text;
  }
  std::string refusal_of(const char* key, const nlohmann::json& value) {
    nlohmann::json config = small_llama_config();
    config[key] = value;
    return refusal(small_llama_tensors(), config);
  }
  TemporaryFolder folder_;
};

TEST_F(GgufShapes, SizesOfTheConfigAreThoseOfTheWeights) {
  EXPECT_TRUE(has(refusal_of("intermediate_size", 64), "mlp.down_proj.weight' has the shape"));
  EXPECT_TRUE(has(refusal_of("num_key_value_heads", 4), "k_proj.weight' has the shape"));
  EXPECT_TRUE(has(refusal_of("head_dim", 8), "self_attn."));
  EXPECT_TRUE(has(refusal_of("num_hidden_layers", 1), "is not of a model of 1 layers"));
  EXPECT_TRUE(has(refusal_of("attention_bias", true), "no tensor for blk.0.attn_"));
  EXPECT_TRUE(has(refusal_of("mlp_bias", true), "no tensor for blk.0.ffn_"));
  EXPECT_TRUE(
      has(refusal_of("rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}),
          "partial_rotary_factor is 0.5"));
}

TEST_F(GgufShapes, VectorsAreNoMatrices) {
  std::vector<NamedShape> tensors = small_llama_tensors();
  for (NamedShape& tensor : tensors) {
    if (tensor.name.ends_with("v_proj.weight")) tensor.shape = {elements_of(tensor.shape)};
  }
  EXPECT_TRUE(has(refusal(tensors, small_llama_config()), "v_proj.weight' has the shape"));
}

TEST_F(GgufShapes, AHeadThatIsNotTiedMustBeThere) {
  std::vector<NamedShape> tensors = small_llama_tensors();
  std::erase_if(tensors, [](const NamedShape& each) { return each.name == "lm_head.weight"; });
  EXPECT_TRUE(has(refusal(tensors, small_llama_config()), "no tensor for output.weight"));
}

TEST_F(GgufShapes, Gpt2NeedsItsBiases) {
  std::vector<NamedShape> tensors = small_gpt2_tensors();
  std::erase_if(tensors, [](const NamedShape& each) { return each.name.ends_with("c_fc.bias"); });
  EXPECT_TRUE(has(refusal(tensors, small_gpt2_config()), "no tensor for blk.0.ffn_up.bias"));
}

// transformers leaves out biases that config.json denies, and llama.cpp computes with them.
TEST_F(GgufShapes, BiasesThatTheConfigDeniesAreRefused) {
  std::vector<NamedShape> tensors = small_llama_tensors();
  tensors.push_back({"model.layers.1.self_attn.q_proj.bias", {gguf_width}});
  EXPECT_TRUE(has(refusal(tensors, small_llama_config()),
                  "the checkpoint has 'model.layers.1.self_attn.q_proj.bias', and config.json "
                  "describes a llama model without it (attention_bias is not true): transformers "
                  "leaves it out, and llama.cpp does not; set the key to true if"));
  tensors.back() = {"model.layers.0.mlp.up_proj.bias", {gguf_inner}};
  EXPECT_TRUE(has(refusal(tensors, small_llama_config()), "(mlp_bias is not true)"));
  tensors.back() = {"model.layers.0.input_layernorm.bias", {gguf_width}};
  EXPECT_TRUE(has(refusal(tensors, small_llama_config()), "remove the tensor if the model was"));
  tensors.back() = {"model.layers.0.self_attn.q_proj.bias", {gguf_width}};
  nlohmann::json mistral = small_llama_config();
  mistral.update({{"model_type", "mistral"}, {"attention_bias", true}});
  EXPECT_TRUE(has(refusal(tensors, mistral), "describes a mistral model without it: transformers"));
  std::vector<NamedShape> gpt2 = small_gpt2_tensors();
  gpt2.push_back({"lm_head.bias", {gguf_vocabulary}});
  EXPECT_TRUE(has(refusal(gpt2, small_gpt2_config()), "'lm_head.bias'"));
}

}  // namespace
}  // namespace tessera::checkpoint

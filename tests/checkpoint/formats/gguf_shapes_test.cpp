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

}  // namespace
}  // namespace tessera::checkpoint

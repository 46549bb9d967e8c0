// Damaged, hostile and unsupported GGUF files, and models that GGUF cannot hold: each is refused by
// one line.
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/formats/gguf_testing.h"
#include "checkpoint/formats/known_formats.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

constexpr std::uint64_t huge = std::uint64_t{1} << 62;

class GgufRefusal : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) {
    write_all(path(), bytes);
    const auto before = resident_memory().now;
    std::string text = error_of([&] { (void)formats::gguf_format().open(path()); });
    EXPECT_LT(resident_memory().now, before + (std::uint64_t{64} << 20));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  std::string refusal(const GgufBytes& file) { return refusal(file.bytes()); }
  [[nodiscard]] fs::path path() const { return folder_.path() / "m.gguf"; }
  TemporaryFolder folder_;
};

TEST_F(GgufRefusal, BeginningsThatAreNotOurs) {
  EXPECT_TRUE(has(refusal(std::string("GGML") + std::string(100, '\0')), "not a GGUF file"));
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, 0, 0x03000000)), "big-endian"));
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, 0, 1)), "version 1"));
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, 0)), "no general.architecture"));
  EXPECT_TRUE(has(refusal("GG"), "ends within"));
  EXPECT_TRUE(has(refusal(""), "ends within"));
}

TEST_F(GgufRefusal, CountsAndLengthsBeyondTheFile) {
  EXPECT_TRUE(has(refusal(GgufBytes().header(huge, 0)), "tensors in"));
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, huge)), "keys in"));
  const auto one = [] { return GgufBytes().header(0, 1); };
  const std::string rest(64, '\0');
  EXPECT_TRUE(has(refusal(one().number(huge).bytes() + rest), "ends within a key"));
  EXPECT_TRUE(has(refusal(one().text("k").number<std::uint32_t>(8).number(huge).bytes() + rest),
                  "ends within a text"));
  const auto array = [&](std::uint32_t type) {
    return one().text("k").number<std::uint32_t>(9).number(type).number(huge).bytes() + rest;
  };
  EXPECT_TRUE(has(refusal(array(5)), "elements, and"));
  EXPECT_TRUE(has(refusal(array(8)), "elements, and"));
  EXPECT_TRUE(has(refusal(array(9)), "array of arrays"));
  EXPECT_TRUE(has(refusal(array(13)), "unknown type"));
  // The first text of an array goes over the file's end.
  EXPECT_TRUE(has(refusal(one()
                              .text("k")
                              .number<std::uint32_t>(9)
                              .number<std::uint32_t>(8)
                              .number<std::uint64_t>(2)
                              .number<std::uint64_t>(1000)
                              .bytes() +
                          rest),
                  "ends within a text of an array"));
}

TEST_F(GgufRefusal, KeysAndTensorsThatComeTwice) {
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, 2).number_pair("a", 1).number_pair("a", 1)),
                  "'a' comes twice"));
  EXPECT_TRUE(
      has(refusal(GgufBytes().header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).data(64)),
          "'t' comes twice"));
}

TEST_F(GgufRefusal, TensorsThatLie) {
  const auto file = [](const std::vector<std::uint64_t>& sizes, std::uint32_t type,
                       std::uint64_t place) {
    return GgufBytes().header(1, 0).tensor("t", sizes, type, place).data(64);
  };
  EXPECT_TRUE(has(refusal(file({17}, 0, 0)), "ends before the end"));
  EXPECT_TRUE(has(refusal(file({16}, 0, 32)), "ends before the end"));
  EXPECT_TRUE(has(refusal(file({16}, 0, huge)), "ends before the end"));
  EXPECT_TRUE(has(refusal(file({16}, 0, 4)), "not at a multiple of 32"));
  EXPECT_TRUE(has(refusal(file({huge, huge}, 0, 0)), "valid number"));
  EXPECT_TRUE(has(refusal(file({std::numeric_limits<std::uint64_t>::max()}, 0, 0)), "dimension"));
  EXPECT_TRUE(has(refusal(file({huge}, 0, 0)), "too large"));
  EXPECT_TRUE(has(refusal(file({1, 1, 1, 1, 1}, 0, 0)), "5 dimensions"));
  EXPECT_TRUE(has(refusal(file({33}, 8, 0)), "rows of 33 elements"));
  EXPECT_TRUE(has(refusal(file({256}, 13, 0)), "is q5_k, which is not read"));
  EXPECT_TRUE(has(refusal(file({256}, 999, 0)), "is number 999"));
  EXPECT_TRUE(has(
      refusal(GgufBytes().header(2, 0).tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).data(64)),
      "share bytes"));
  EXPECT_TRUE(
      has(refusal(GgufBytes().header(0, 1).number_pair("general.alignment", 0)), "power of two"));
  EXPECT_TRUE(
      has(refusal(GgufBytes().header(0, 1).number_pair("general.alignment", 48)), "power of two"));
}

TEST_F(GgufRefusal, ModelsThatAreNotRead) {
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, 1).text_pair("general.architecture", "bert")),
                  "architecture 'bert'"));
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, 1).number_pair("split.count", 2)),
                  "llama-gguf-split --merge"));
  EXPECT_TRUE(has(refusal(GgufBytes().header(0, 1).text_pair("general.architecture", "llama")),
                  "llama.context_length is missing"));
}

TEST_F(GgufRefusal, FilesThatEndAnywhere) {
  write_small_model(folder_.path() / "hf", small_gpt2_tensors(), small_gpt2_config());
  convert(folder_.path() / "hf", folder_.path() / "whole.gguf", {.to = "gguf", .type = "q8_0"});
  const std::string whole = read_all(folder_.path() / "whole.gguf");
  for (std::size_t bytes = 0; bytes < whole.size();) {
    EXPECT_FALSE(refusal(whole.substr(0, bytes)).empty()) << bytes;
    bytes += bytes < 4096 ? 37 : 4099;
  }
  EXPECT_FALSE(refusal(whole.substr(0, whole.size() - 1)).empty());
}

class GgufModelRefusal : public ::testing::Test {
 protected:
  std::string refusal(const std::function<void(nlohmann::json&)>& change,
                      const ConvertOptions& options = {.to = "gguf"},
                      ErrorCode code = ErrorCode::checkpoint) {
    auto config = small_llama_config();
    change(config);
    const fs::path folder = folder_.path() / "hf";
    write_small_model(folder, small_llama_tensors(), config);
    std::string text = error_of([&] { convert(folder, folder_.path() / "m.gguf", options); }, code);
    EXPECT_FALSE(fs::exists(folder_.path() / "m.gguf"));
    return text;
  }
  TemporaryFolder folder_;
};

TEST_F(GgufModelRefusal, ModelsWithoutAMapping) {
  EXPECT_TRUE(has(refusal([](auto& c) { c["model_type"] = "bert"; }), "model_type 'bert'"));
  EXPECT_TRUE(has(refusal([](auto& c) { c["hidden_act"] = "gelu"; }), "hidden_act is \"gelu\""));
  EXPECT_TRUE(has(refusal([](auto& c) {
                    c["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}};
                  }),
                  "rope_type is \"yarn\""));
  EXPECT_TRUE(has(refusal([](auto& c) { c["num_attention_heads"] = 3; }), "head_dim is 21"));
  EXPECT_TRUE(has(refusal([](auto& c) { c["vocab_size"] = 41; }), "token table"));
  EXPECT_TRUE(
      has(refusal([](auto& c) { c["num_hidden_layers"] = 3; }), "blk.2.attn_output.weight"));
  EXPECT_TRUE(has(refusal([](auto& c) { c["hidden_size"] = -1; }), "hidden_size is -1"));
  EXPECT_TRUE(has(refusal([](auto& c) { c["rms_norm_eps"] = "x"; }), "rms_norm_eps"));
  // llama.cpp turns no positions in every fourth layer of SmolLM3.
  EXPECT_TRUE(has(refusal([](auto& c) {
                    c.update({{"model_type", "smollm3"}, {"no_rope_layers", {1, 0}}});
                  }),
                  "no_rope_layers is [1,0]; llama.cpp computes with [1,1] only"));
  EXPECT_TRUE(has(refusal([](auto& c) {
                    c.update({{"model_type", "smollm3"}, {"no_rope_layer_interval", 3}});
                  }),
                  "no_rope_layer_interval is 3"));
  EXPECT_TRUE(has(refusal([](auto& c) { c["partial_rotary_factor"] = 0.5; }),
                  "partial_rotary_factor is 0.5; llama.cpp computes with 1 only"));
  EXPECT_TRUE(has(refusal([](auto& c) {
                    c.update({{"model_type", "qwen3"}, {"attention_bias", true}});
                  }),
                  "attention_bias is true"));
  EXPECT_TRUE(has(refusal([](auto& c) {
                    c.update({{"model_type", "smollm3"}, {"mlp_bias", true}});
                  }),
                  "mlp_bias is true"));
}

TEST_F(GgufModelRefusal, TypesAndDtypesThatDoNotFit) {
  const auto nothing = [](auto&) {};
  EXPECT_TRUE(has(refusal(nothing, {.to = "gguf", .type = "q9"}, ErrorCode::usage),
                  "f32, f16, bf16, q8_0, q4_0, q4_k, q6_k"));
  EXPECT_TRUE(has(refusal(nothing, {.to = "gguf", .dtype = DType::float16}, ErrorCode::usage),
                  "use --type"));
  EXPECT_TRUE(has(refusal(nothing, {.to = "hf", .type = "q8_0"}, ErrorCode::usage), "use --dtype"));
}

TEST_F(GgufModelRefusal, WeightsAloneWithoutSettings) {
  const fs::path folder = folder_.path() / "hf";
  write_small_model(folder, small_llama_tensors(), small_llama_config());
  fs::remove(folder / "config.json");
  EXPECT_TRUE(has(error_of([&] { convert(folder, folder_.path() / "m.gguf", {.to = "gguf"}); }),
                  "which only config.json can tell"));
}

TEST_F(GgufModelRefusal, ValuesThatAreNotFinite) {
  const fs::path folder = folder_.path() / "hf";
  write_small_model(folder, small_llama_tensors(), small_llama_config());
  std::string bytes = read_all(folder / "model.safetensors");
  const SafetensorsFile file(folder / "model.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + file.find("lm_head.weight")->begin + 400, &nan, sizeof nan);
  write_all(folder / "model.safetensors", bytes);
  EXPECT_TRUE(has(
      error_of([&] { convert(folder, folder_.path() / "m.gguf", {.to = "gguf", .type = "q8_0"}); }),
      "'lm_head.weight' has values that q8_0 cannot hold"));
}

}  // namespace
}  // namespace tessera::checkpoint

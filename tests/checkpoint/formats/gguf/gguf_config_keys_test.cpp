// Keys of config.json that GGUF has no place for: those that another model would compute with are
// noted, and dropout comes back.
#include <gtest/gtest.h>

#include "checkpoint/formats/gguf_testing.h"
#include "checkpoint/io/json.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using nlohmann::json;

class GgufConfigKeys : public ::testing::Test {
 protected:
  // The notes that speak of config.json's values.
  std::vector<std::string> notes_with(const json& changes) {
    json config = small_llama_config();
    config.update(changes);
    write_small_model(folder_.path() / "hf", small_llama_tensors(), config);
    auto notes = convert(folder_.path() / "hf", gguf(), {.to = "gguf", .force = true}).notes;
    std::erase_if(notes, [](const std::string& note) { return !has(note, "config.json has "); });
    return notes;
  }
  json read_back() {
    fs::remove_all(folder_.path() / "back");
    convert(gguf(), folder_.path() / "back", {.to = "hf"});
    return parse_json(read_all(folder_.path() / "back" / "config.json"), "config.json");
  }
  [[nodiscard]] fs::path gguf() const { return folder_.path() / "m.gguf"; }
  TemporaryFolder folder_;
};

TEST_F(GgufConfigKeys, WhatAnotherModelComputesWithIsNoted) {
  const auto notes = notes_with({{"logit_scale", 0.5}, {"attention_multiplier", 2.0}});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(
      has(notes[0],
          "config.json has attention_multiplier = 2.0, logit_scale = 0.5: llama.cpp's llama "
          "does not compute with them, nor does transformers' LlamaForCausalLM"));
  for (const char* key : {"final_logit_softcapping", "query_pre_attn_scalar", "clip_qkv",
                          "residual_multiplier", "logits_scaling", "scale_emb"}) {
    const auto one = notes_with({{key, 8.0}});
    ASSERT_EQ(one.size(), 1u) << key;
    EXPECT_TRUE(
        has(one[0], std::string(key) + " = 8.0: llama.cpp's llama does not compute with it"));
  }
  EXPECT_EQ(notes_with({{"use_qk_norm", true}}).size(), 1u);
}

TEST_F(GgufConfigKeys, HarmlessKeysAreSilent) {
  EXPECT_TRUE(notes_with({{"logit_scale", 1.0},
                          {"final_logit_softcapping", nullptr},
                          {"residual_multiplier", 1},
                          {"use_cache", true},
                          {"initializer_range", 0.02},
                          {"pretraining_tp", 2},
                          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                          {"_name_or_path", "multiplier"},
                          {"unsloth_version", "1"}})
                  .empty());
}

TEST_F(GgufConfigKeys, DropoutComesBack) {
  const auto gpt2 = [&](const json& changes) {
    json config = small_gpt2_config();
    config.update(changes);
    write_small_model(folder_.path() / "hf", small_gpt2_tensors(), config);
    convert(folder_.path() / "hf", gguf(), {.to = "gguf", .force = true});
    const json back = read_back();
    return std::vector<double>{back.at("attn_pdrop"), back.at("embd_pdrop"),
                               back.at("resid_pdrop")};
  };
  EXPECT_EQ(gpt2({{"attn_pdrop", 0.0}, {"embd_pdrop", 0.25}, {"resid_pdrop", 0}}),
            (std::vector<double>{0, 0.25, 0}));
  EXPECT_EQ(gpt2(json::object()), (std::vector<double>{0.1, 0.1, 0.1}));  // transformers' default
  // As in a file of another program, which has no key for it.
  EXPECT_EQ(gpt2({{"attn_pdrop", 0}, {"embd_pdrop", 0}, {"resid_pdrop", 0}}),
            (std::vector<double>{0, 0, 0}));
  notes_with({{"attention_dropout", 0.25}});
  EXPECT_EQ(read_back().at("attention_dropout"), 0.25);
  notes_with(json::object());
  EXPECT_FALSE(read_back().contains("attention_dropout"));
}

// The defaults of transformers' classes where config.json leaves a key out.
TEST_F(GgufConfigKeys, DefaultsAreThoseOfTheClass) {
  json config = small_llama_config();
  config.erase("rope_theta");
  config.update({{"model_type", "smollm3"}});
  write_small_model(folder_.path() / "hf", small_llama_tensors(), config);
  convert(folder_.path() / "hf", gguf(), {.to = "gguf"});
  EXPECT_EQ(read_back().at("rope_theta"), 2e6);
}

}  // namespace
}  // namespace tessera::checkpoint

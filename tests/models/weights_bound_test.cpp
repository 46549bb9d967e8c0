// A configuration that asks for more than its weights have is refused before anything is allocated.
#include "models/weights_bound.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/safetensors/safetensors.h"
#include "models/load/load.h"
#include "models/sentence_encoder/sentence_encoder.h"
#include "tests/support/temporary_folder.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void put_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string message_of(const std::function<void()>& work, ErrorCode code = ErrorCode::checkpoint) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

// Files with these tensors, without values.
void put_weights(const fs::path& folder, const std::map<std::string, std::vector<int>>& shapes) {
  std::vector<std::vector<float>> values;
  std::vector<checkpoint::TensorToWrite> tensors;
  values.reserve(shapes.size());
  fs::create_directories(folder);
  for (const auto& [name, shape] : shapes) {
    std::size_t elements = 1;
    for (const int size : shape) elements *= static_cast<std::size_t>(size);
    values.emplace_back(elements);
    tensors.push_back({{name, float32, {shape.begin(), shape.end()}}, values.back().data()});
  }
  checkpoint::write_safetensors(folder / "model.safetensors", tensors);
}

const json small_gpt2 = {{"model_type", "gpt2"}, {"n_layer", 2},     {"n_head", 1},  {"n_embd", 4},
                         {"n_positions", 8},     {"vocab_size", 50}, {"n_inner", 16}};

class WeightsBound : public ::testing::Test {
 protected:
  void SetUp() override {
    put_weights(folder_.path(), {{"wte.weight", {50, 4}},
                                 {"wpe.weight", {8, 4}},
                                 {"h.0.mlp.c_fc.weight", {4, 16}},
                                 {"h.1.mlp.c_fc.weight", {4, 16}}});
  }
  testing::TemporaryFolder folder_;
};

TEST_F(WeightsBound, TheKeyItsValueAndWhatTheWeightsHave) {
  check_weights_bound(folder_.path(), small_gpt2);
  const std::pair<const char*, const char*> cases[] = {
      {"n_layer", "n_layer is 1000000000, but the weights there have 2 layers"},
      {"n_embd", "n_embd is 1000000000, but the largest dimension of the weights there is 50"},
      {"n_inner", "n_inner is 1000000000"},
      {"n_positions", "n_positions is 1000000000"},
      {"vocab_size", "vocab_size is 1000000000"}};
  for (const auto& [key, expected] : cases) {
    json config = small_gpt2;
    config[key] = 1'000'000'000;
    const std::string message = message_of([&] { check_weights_bound(folder_.path(), config); });
    EXPECT_NE(message.find(expected), std::string::npos) << key << ": " << message;
    // The program reads the folder so.
    put_text(folder_ / "config.json", config.dump());
    EXPECT_EQ(message_of([&] {
                (void)load_language_model(folder_.path().string(), float32, Device::cpu());
              }),
              message);
  }
}

TEST_F(WeightsBound, ManyParametersOfAFewBytes) {
  // A tensor of one row is as wide as it likes.
  put_weights(folder_.path(), {{"wte.weight", {1, 200'000}}, {"h.9.x", {1}}});
  json config = small_gpt2;
  config["vocab_size"] = config["n_embd"] = 200'000;
  const std::string message = message_of([&] { check_weights_bound(folder_.path(), config); });
  EXPECT_NE(message.find("parameters, but the weights there have"), std::string::npos) << message;
}

TEST_F(WeightsBound, ADamagedFileBoundsTheParametersToo) {
  put_text(folder_ / "model.safetensors", "not a model");
  check_weights_bound(folder_.path(), small_gpt2);  // the load says what is wrong
  json config = small_gpt2;
  config["n_layer"] = 10'000;
  config["n_embd"] = config["n_inner"] = 10'000;
  EXPECT_NE(message_of([&] { check_weights_bound(folder_.path(), config); }), "");
}

TEST_F(WeightsBound, WithoutWeightsAPlanMayAskForAnything) {
  fs::remove(folder_ / "model.safetensors");
  json config = small_gpt2;
  config["n_layer"] = 5000;
  check_weights_bound(folder_.path(), config);
}

TEST(SentenceFolderBound, ADenseModuleAndModesOfPooling) {
  const testing::TemporaryFolder folder;
  const json bert = {
      {"model_type", "bert"},        {"vocab_size", 20},         {"hidden_size", 8},
      {"num_hidden_layers", 1},      {"num_attention_heads", 1}, {"intermediate_size", 8},
      {"max_position_embeddings", 8}};
  const auto module = [](const char* path, const char* type) {
    return json{{"path", path}, {"type", std::string("sentence_transformers.models.") + type}};
  };
  put_text(folder / "config.json", bert.dump());
  put_text(folder / "modules.json",
           json::array({module("", "Transformer"), module("1_Pooling", "Pooling"),
                        module("2_Dense", "Dense")})
               .dump());
  put_text(folder / "1_Pooling/config.json",
           R"({"word_embedding_dimension": 8, "pooling_mode": ["mean", "max"]})");
  const auto dense = [&](std::int64_t out) {
    put_text(folder / "2_Dense/config.json",
             json{{"in_features", 16}, {"out_features", out}}.dump());
  };
  const auto make = [&] { (void)make_sentence_encoder(folder.path().string()); };
  put_weights(folder / "2_Dense", {{"linear.weight", {4, 16}}, {"linear.bias", {4}}});
  dense(4);
  EXPECT_EQ(message_of(make), "");
  dense(1'000'000'000);
  EXPECT_NE(message_of(make).find("a matrix of 1000000000 x 16"), std::string::npos);
  fs::remove(folder / "2_Dense/model.safetensors");
  EXPECT_NE(message_of(make, ErrorCode::configuration).find("out_features"), std::string::npos);
  dense(4);
  put_text(folder / "1_Pooling/config.json",
           R"({"word_embedding_dimension": 8, "pooling_mode": ["mean", "mean"]})");
  EXPECT_NE(message_of(make, ErrorCode::configuration).find("names \"mean\" twice"),
            std::string::npos);
}

// `intermediate_size` is that of layers without experts, of which there may be none.
TEST(WeightsBoundOfExperts, CountsTheExpertsAndTheirWidth) {
  const testing::TemporaryFolder folder;
  put_weights(folder.path(), {{"model.embed_tokens.weight", {8, 4}},
                              {"model.layers.0.mlp.gate.weight", {3, 4}},
                              {"model.layers.0.mlp.experts.2.up_proj.weight", {5, 4}}});
  const json config = {{"model_type", "qwen3_moe"}, {"num_hidden_layers", 1},
                       {"hidden_size", 4},          {"intermediate_size", 6144},
                       {"vocab_size", 8},           {"moe_intermediate_size", 5},
                       {"num_experts", 3}};
  check_weights_bound(folder.path(), config);
  for (const std::string key : {"num_experts", "moe_intermediate_size"}) {
    json larger = config;
    larger[key] = 1'000'000'000;
    const std::string message = message_of([&] { check_weights_bound(folder.path(), larger); });
    EXPECT_NE(message.find(key + " is 1000000000, but the largest dimension of the weights there "
                                 "is 8"),
              std::string::npos)
        << message;
  }
}

}  // namespace
}  // namespace tessera::models

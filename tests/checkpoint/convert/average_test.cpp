// The mean of several checkpoints' weights: its elements, its dtype, and what is refused.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "base/low_precision.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

class Average : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b", "c"}) {
      write_small_model(at(name), small_llama_tensors(), small_llama_config());
    }
    scale("b", 3.0f);
    scale("c", -0.7f);
  }

  [[nodiscard]] fs::path at(const std::string& name) const { return folder_.path() / name; }

  // The models are made with one seed: others' weights are these times a factor.
  void scale(const std::string& name, float factor) {
    const fs::path path = at(name) / "model.safetensors";
    std::string bytes = read_all(path);
    const SafetensorsFile file(path);
    for (const TensorEntry& tensor : file.header().tensors()) {
      for (std::uint64_t place = tensor.begin; place < tensor.end; place += sizeof(float)) {
        float value = 0;
        std::memcpy(&value, bytes.data() + place, sizeof value);
        value *= factor;
        std::memcpy(bytes.data() + place, &value, sizeof value);
      }
    }
    write_all(path, bytes);
  }

  [[nodiscard]] std::vector<float> weights(const std::string& name,
                                           const std::string& tensor) const {
    return floats_of(at(name) / "model.safetensors", tensor);
  }

  ConvertReport average(const std::vector<std::string>& others, ConvertOptions options = {}) {
    for (const std::string& other : others) options.average.push_back(at(other));
    if (options.to.empty()) options.to = "hf";
    options.force = true;
    return convert(at("a"), at("mean"), options);
  }

  std::string refusal(const std::vector<std::string>& others, const ConvertOptions& options = {},
                      ErrorCode code = ErrorCode::checkpoint) {
    std::string text = error_of([&] { average(others, options); }, code);
    EXPECT_FALSE(fs::exists(at("mean")));
    return text;
  }

  // Replaces a model's file by one with this tensor as well.
  void write_with_integers(const std::string& name, const std::vector<std::int32_t>& integers) {
    const std::vector<float> values{1.0f, 2.0f};
    fs::remove(at(name) / "model.safetensors");
    write_safetensors(
        at(name) / "model.safetensors",
        {{{"n", DType::float32, {static_cast<std::int64_t>(values.size())}}, values.data()},
         {{"steps", DType::int32, {static_cast<std::int64_t>(integers.size())}}, integers.data()}});
    fs::remove(at(name) / "config.json");
  }

  TemporaryFolder folder_;
};

TEST_F(Average, ElementsAreSumsInTheGivenOrderDividedByTheirNumber) {
  const auto report = average({"b", "c"}, {.verify = true});
  EXPECT_TRUE(report.verified);
  EXPECT_TRUE(has(fmt::format("{}", fmt::join(report.notes, "\n")), "the mean of 3 checkpoints"));
  EXPECT_EQ(report.bytes_read, 3 * report.bytes_written);
  EXPECT_TRUE(fs::exists(at("mean") / "config.json"));
  for (const NamedShape& tensor : small_llama_tensors()) {
    const auto a = weights("a", tensor.name);
    const auto b = weights("b", tensor.name);
    const auto c = weights("c", tensor.name);
    const auto mean = weights("mean", tensor.name);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(mean[i], (a[i] + b[i] + c[i]) / 3.0f) << tensor.name << " " << i;
    }
  }
}

TEST_F(Average, FormatsAndDtypesMayDiffer) {
  convert(at("b"), at("b.pt"), {.to = "torch"});
  convert(at("c"), at("c-step"), {.to = "full", .dtype = DType::bfloat16});
  average({"b.pt", "c-step"});
  for (const char* name : {"lm_head.weight", "model.layers.1.mlp.down_proj.weight"}) {
    const auto a = weights("a", name);
    const auto b = weights("b", name);
    const auto c = weights("c", name);
    const auto mean = weights("mean", name);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(mean[i], (a[i] + b[i] + to_float(to_bfloat16(c[i]))) / 3.0f) << name << " " << i;
    }
  }
}

TEST_F(Average, TheFirstDtypeIsKeptAndMeansAreRoundedOnce) {
  convert(at("a"), at("half"), {.to = "hf", .dtype = DType::bfloat16});
  convert(at("half"), at("mean"), {.to = "hf", .average = {at("b")}});
  convert(at("half"), at("wide"),
          {.to = "hf", .dtype = DType::float32, .average = {at("b")}, .verify = true});
  const SafetensorsFile mean(at("mean") / "model.safetensors");
  const TensorEntry* const entry = mean.find("lm_head.weight");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->stored->name, "BF16");
  std::vector<BFloat16> rounded((entry->end - entry->begin) / sizeof(BFloat16));
  mean.read(*entry, 0, rounded.data(), rounded.size() * sizeof(BFloat16));
  const auto a = weights("a", "lm_head.weight");
  const auto b = weights("b", "lm_head.weight");
  const auto wide = weights("wide", "lm_head.weight");
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float exact = (to_float(to_bfloat16(a[i])) + b[i]) / 2.0f;
    ASSERT_EQ(wide[i], exact);
    ASSERT_EQ(rounded[i].bits, to_bfloat16(exact).bits);
  }
}

TEST_F(Average, AMeanOfHalvesIsNotRoundedBeforeItIsEncoded) {
  for (const char* name : {"a", "b"}) {
    convert(at(name), at(std::string(name) + "16"), {.to = "hf", .dtype = DType::bfloat16});
  }
  convert(at("a16"), at("m.gguf"), {.to = "gguf", .type = "f32", .average = {at("b16")}});
  convert(at("m.gguf"), at("mean"), {.to = "hf"});
  const auto a = weights("a", "model.embed_tokens.weight");
  const auto b = weights("b", "model.embed_tokens.weight");
  const auto mean = weights("mean", "model.embed_tokens.weight");
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(mean[i], (to_float(to_bfloat16(a[i])) + to_float(to_bfloat16(b[i]))) / 2.0f);
  }
}

TEST_F(Average, OtherNamesAndShapesAreRefused) {
  auto tensors = small_llama_tensors();
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", {gguf_width}});
  write_small_model(at("more"), tensors, small_llama_config());
  EXPECT_TRUE(has(refusal({"more"}), "a' has no tensor 'model.layers.0.self_attn.q_proj.bias'"));
  tensors = small_llama_tensors();
  tensors.pop_back();
  write_small_model(at("less"), tensors, small_llama_config());
  EXPECT_TRUE(has(refusal({"b", "less"}), "less' has no tensor 'model.layers.1.mlp.down_proj"));
  tensors = small_llama_tensors();
  tensors[0].shape = {gguf_vocabulary + 1, gguf_width};
  write_small_model(at("larger"), tensors, small_llama_config());
  EXPECT_TRUE(
      has(refusal({"larger"}), "tensor 'model.embed_tokens.weight' has the shape [40, 64]"));
  EXPECT_TRUE(has(refusal({"missing"}), "does not exist"));
  EXPECT_TRUE(has(refusal({"b"}, {.merge = true}, ErrorCode::usage), "--merge"));
}

TEST_F(Average, OtherElementsThanFloatsMustBeEqual) {
  write_with_integers("a", {1, 2, 3});
  write_with_integers("b", {1, 2, 3});
  average({"b"});
  const SafetensorsFile mean(at("mean") / "model.safetensors");
  std::vector<std::int32_t> kept(3);
  mean.read(*mean.find("steps"), 0, kept.data(), 12);
  EXPECT_EQ(kept, (std::vector<std::int32_t>{1, 2, 3}));
  fs::remove_all(at("mean"));
  write_with_integers("b", {1, 2, 4});
  EXPECT_TRUE(has(refusal({"b"}), "tensor 'steps' is I32, of which there is no mean, and differs"));
}

TEST_F(Average, ModelsOfOtherSettingsAreRefused) {
  const auto describe = [&](const std::string& name, const char* key, const nlohmann::json& value) {
    nlohmann::json config = small_llama_config();
    config[key] = value;
    write_all(at(name) / "config.json", config.dump());
  };
  for (const auto& [key, value] : std::vector<std::pair<const char*, nlohmann::json>>{
           {"num_attention_heads", 8}, {"rope_theta", 5e5}, {"hidden_act", "gelu"}}) {
    describe("b", key, value);
    const std::string text = refusal({"b"});
    EXPECT_TRUE(has(text, key) && has(text, "only checkpoints of one model")) << text;
  }
  // The base of the positions in transformers' newer spelling, and what another program wrote.
  describe("b", "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}});
  EXPECT_TRUE(has(refusal({"b"}), "rope_theta"));
  describe("b", "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}});
  describe("c", "transformers_version", "5.0");
  average({"b", "c"});
}

}  // namespace
}  // namespace tessera::checkpoint

// `convert --dtype int8`: which weights become integers, which values, what config.json says, and
// what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/counted.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/gguf_testing.h"
#include "checkpoint/formats/known_formats.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using nlohmann::json;

class ToInt8 : public ::testing::Test {
 protected:
  void write(const std::vector<NamedShape>& tensors, const json& config) {
    write_small_model(from(), tensors, config);
  }
  // The layers of Llama and GPT-2, as models::weights_in_out() gives them.
  static std::map<std::string, bool> layers_of(const std::vector<NamedShape>& tensors,
                                               bool in_out) {
    std::map<std::string, bool> layers;
    for (const NamedShape& tensor : tensors) {
      const bool is_table = tensor.name.find("embed") != std::string::npos ||
                            tensor.name.find("wte") != std::string::npos ||
                            tensor.name.find("wpe") != std::string::npos;
      if (tensor.shape.size() == 2 && !is_table) layers[tensor.name] = in_out;
    }
    return layers;
  }
  ConvertReport run(std::map<std::string, bool> layers, bool verify = true) {
    ConvertOptions options;
    options.to = "hf";
    options.int8 = true;
    options.verify = verify;
    options.force = true;
    options.lies_in_out = [layers = std::move(layers)](const std::string&) { return layers; };
    return convert(from(), to(), options);
  }
  [[nodiscard]] FoundTensors stored() const { return tensors_of(*formats::open_as_stored(to())); }
  [[nodiscard]] fs::path from() const { return folder_.path() / "from"; }
  [[nodiscard]] fs::path to() const { return folder_.path() / "to"; }
  // The rule for one weight, [rows, columns].
  void expect_rounded(const std::string& name, const std::vector<std::int64_t>& shape,
                      bool in_out) {
    const std::vector<float> values = floats_of(from() / "model.safetensors", name);
    const std::int64_t outputs = shape[in_out ? 1 : 0];
    const auto output_of = [&](std::size_t i) {
      const auto at = static_cast<std::int64_t>(i);
      return static_cast<std::size_t>(in_out ? at % shape[1] : at / shape[1]);
    };
    std::vector<float> scales(static_cast<std::size_t>(outputs), 0.0f);
    for (std::size_t i = 0; i < values.size(); ++i) {
      scales[output_of(i)] = std::max(scales[output_of(i)], std::abs(values[i]));
    }
    for (float& scale : scales) scale = scale == 0 ? 1 : scale / 127.0f;
    std::string integers;
    for (std::size_t i = 0; i < values.size(); ++i) {
      integers += static_cast<char>(std::lround(std::nearbyint(values[i] / scales[output_of(i)])));
    }
    const FoundTensors found = stored();
    EXPECT_EQ(found.at("model/" + name).dtype, "I8");
    EXPECT_TRUE(found.at("model/" + name).bytes == integers) << name;
    const FoundTensor& of_scales = found.at("model/" + name + "_scale");
    EXPECT_EQ(of_scales.dtype, "F32");
    EXPECT_EQ(of_scales.shape, (in_out ? std::vector{std::int64_t{1}, outputs}
                                       : std::vector{outputs, std::int64_t{1}}));
    EXPECT_TRUE(of_scales.bytes == std::string(reinterpret_cast<const char*>(scales.data()),
                                               scales.size() * sizeof(float)));
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(ToInt8, LinearLayersOfALlama) {
  const auto tensors = small_llama_tensors();
  write(tensors, small_llama_config());
  const ConvertReport report = run(layers_of(tensors, false));
  EXPECT_TRUE(report.verified);
  EXPECT_NE(std::find(report.notes.begin(), report.notes.end(),
                      "14 weights of linear layers stored as int8, with a scale for each output"),
            report.notes.end());
  std::int64_t parameters = 0;
  for (const NamedShape& tensor : tensors) parameters += element_count(tensor.shape, tensor.name);
  const std::string card = read_all(to() / "README.md");
  EXPECT_NE(card.find(fmt::format(" with {}, those of linear layers as 8-bit integers",
                                  counted(parameters, "parameter"))),
            std::string::npos)
      << card;
  const FoundTensors found = stored();
  EXPECT_EQ(found.size(), tensors.size() + 14);
  for (const NamedShape& tensor : tensors) {
    if (tensor.name.find("_proj") != std::string::npos) {
      expect_rounded(tensor.name, tensor.shape, false);
    } else {
      EXPECT_EQ(found.at("model/" + tensor.name).dtype, "F32") << tensor.name;
    }
  }
}

TEST_F(ToInt8, TheConfigurationIsThatOfCompressedTensors) {
  const auto tensors = small_llama_tensors();
  write(tensors, small_llama_config());
  run(layers_of(tensors, false));
  json config = json::parse(read_file(to() / "config.json", 1 << 20));
  const json scheme = config["quantization_config"];
  EXPECT_EQ(scheme["quant_method"], "compressed-tensors");
  EXPECT_EQ(scheme["format"], "int-quantized");
  EXPECT_EQ(scheme["ignore"], json({"lm_head", "model.embed_tokens"}));
  const json& group = scheme["config_groups"]["group_0"];
  EXPECT_EQ(group["targets"], json::array({"Linear"}));
  EXPECT_EQ(group["weights"]["strategy"], "channel");
  EXPECT_EQ(group["input_activations"]["strategy"], "token");
  EXPECT_EQ(group["input_activations"]["dynamic"], true);
  config.erase("quantization_config");
  EXPECT_EQ(config, small_llama_config());
}

TEST_F(ToInt8, LayersOfGpt2HaveTheirScalesInColumns) {
  const auto tensors = small_gpt2_tensors();
  write(tensors, small_gpt2_config());
  run(layers_of(tensors, true));
  for (const NamedShape& tensor : tensors) {
    if (tensor.shape.size() == 2 && tensor.name.find(".h.") != std::string::npos) {
      expect_rounded(tensor.name, tensor.shape, true);
    }
  }
}

TEST_F(ToInt8, IsReadBackAndConvertedAgain) {
  const auto tensors = small_llama_tensors();
  write(tensors, small_llama_config());
  run(layers_of(tensors, false));
  const fs::path first = from();
  ConvertOptions options;
  options.to = "hf";
  options.dtype = DType::float32;
  const fs::path back = to().parent_path() / "back";
  convert(to(), back, options);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const auto before = floats_of(first / "model.safetensors", name);
  const auto after = floats_of(back / "model.safetensors", name);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(before[i], after[i], 0.02) << i;
  EXPECT_FALSE(
      json::parse(read_file(back / "config.json", 1 << 20)).contains("quantization_config"));
}

TEST_F(ToInt8, OutputsOfZerosStayZeros) {
  write({{"a.weight", {2, 3}}}, {{"model_type", "other"}});
  const std::vector<float> values{0, 0, 0, 1, -2, 0.5f};
  write_safetensors(from() / "model.safetensors", {{{"a.weight", float32, {2, 3}}, values.data()}});
  run({{"a.weight", false}});
  expect_rounded("a.weight", {2, 3}, false);
}

TEST_F(ToInt8, ValuesThatAreNotFiniteAreRefused) {
  write({{"a.weight", {2, 3}}}, {{"model_type", "other"}});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> values{0, 1, 2, 3, bad, 5};
    write_safetensors(from() / "model.safetensors",
                      {{{"a.weight", float32, {2, 3}}, values.data()}});
    const std::string text = error_of([&] { run({{"a.weight", false}}); });
    EXPECT_NE(text.find("'a.weight' has a value that is not finite"), std::string::npos) << text;
    EXPECT_FALSE(fs::exists(to()));
  }
}

TEST_F(ToInt8, ModelsWithoutKnownLayersAndExpertsAreRefused) {
  write({{"a.weight", {2, 3}}}, {{"model_type", "other"}});
  EXPECT_NE(error_of([&] { run({}); }).find("no linear layers that Tessera knows"),
            std::string::npos);
  write({{"a.weight", {2, 3}}, {"mlp.experts.0.w1.weight", {2, 3}}}, {{"model_type", "other"}});
  EXPECT_NE(error_of([&] {
              run({{"a.weight", false}});
            }).find("belongs to an expert"),
            std::string::npos);
}

TEST_F(ToInt8, OtherFormatsAreRefused) {
  write(small_llama_tensors(), small_llama_config());
  for (const auto& [format, way_out] : std::map<std::string, std::string>{
           {"full", "use --to hf"}, {"torch", "use --to hf"}, {"gguf", "--type q8_0"}}) {
    ConvertOptions options;
    options.to = format;
    options.int8 = true;
    const std::string text = error_of([&] { convert(from(), to(), options); }, ErrorCode::usage);
    EXPECT_NE(text.find("--dtype int8"), std::string::npos) << text;
    EXPECT_NE(text.find(way_out), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tessera::checkpoint

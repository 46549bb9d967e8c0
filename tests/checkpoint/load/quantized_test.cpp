// Quantised weights of Hugging Face folders: fp8 with each kind of scales and MXFP4 become
// bfloat16, other methods and scales that do not fit are refused.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/low_precision.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/formats/formats_testing.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/load/quantized_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using nlohmann::json;

// Bytes of every kind but those of NaN in E4M3.
std::string element_bytes(std::int64_t number) {
  std::string bytes(static_cast<std::size_t>(number), '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(i * 37 + i / 256 * 11);
    bytes[i] = static_cast<char>((byte & 0x7f) == 0x7f ? 0x35 : byte);
  }
  return bytes;
}

std::vector<float> scales_from(std::size_t number) {
  std::vector<float> scales(number);
  for (std::size_t i = 0; i < number; ++i) scales[i] = 0.0137f * static_cast<float>(i + 1);
  return scales;
}

// E4M3 of OCP by its definition.
float e4m3(char byte) {
  const auto bits = static_cast<unsigned char>(byte);
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  const double value = exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6)
                                     : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7);
  return static_cast<float>((bits & 0x80) != 0 ? -value : value);
}

class Quantized : public ::testing::Test {
 protected:
  void write(const std::vector<RawTensor>& tensors, const json& quantization = nullptr) {
    write_raw(dir() / "model.safetensors", tensors);
    json config{{"model_type", "other"}};
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    write_all(dir() / "config.json", config.dump());
  }
  [[nodiscard]] fs::path dir() const { return dir_.path(); }
  std::unique_ptr<formats::Source> open() { return formats::hugging_face_format().open(dir()); }
  std::string refusal() {
    return error_of([&] { open(); });
  }
  void expect(const std::string& name, const std::vector<std::int64_t>& shape,
              const std::vector<float>& values) {
    for (const std::int64_t step : {1 << 20, 7, 1}) {
      const auto source = open();
      const FoundTensors found = tensors_of(*source, step);
      ASSERT_TRUE(found.contains("model/" + name)) << name;
      EXPECT_EQ(found.size(), 1u);
      const FoundTensor& tensor = found.at("model/" + name);
      EXPECT_EQ(tensor.dtype, "BF16");
      EXPECT_EQ(tensor.shape, shape);
      EXPECT_TRUE(tensor.bytes == bf16_bytes(values)) << name << " in steps of " << step;
    }
  }
  // Element [row, column] of [rows, columns] times its scale.
  static std::vector<float> scaled(const std::string& bytes, std::int64_t columns,
                                   const std::function<float(std::int64_t, std::int64_t)>& scale) {
    std::vector<float> values;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      values.push_back(e4m3(bytes[i]) * scale(at / columns, at % columns));
    }
    return values;
  }

 private:
  TemporaryFolder dir_;
};

TEST_F(Quantized, BlocksOfDeepSeekWithAPartialLastBlock) {
  const std::string bytes = element_bytes(200 * 150);
  const std::vector<float> scales = scales_from(4);
  write({{"a.weight", "F8_E4M3", {200, 150}, bytes},
         {"a.weight_scale_inv", "F32", {2, 2}, as_bytes(scales)}},
        {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}});
  expect("a.weight", {200, 150}, scaled(bytes, 150, [&](std::int64_t row, std::int64_t column) {
           return scales[static_cast<std::size_t>(row / 128 * 2 + column / 128)];
         }));
}

TEST_F(Quantized, TheConfigurationGivesTheBlock) {
  const std::string bytes = element_bytes(6 * 8);
  const std::vector<float> scales = scales_from(6);
  write({{"a.weight", "F8_E4M3", {6, 8}, bytes},
         {"a.weight_scale_inv", "F32", {3, 2}, as_bytes(scales)}},
        {{"quant_method", "fp8"}, {"weight_block_size", {2, 4}}});
  expect("a.weight", {6, 8}, scaled(bytes, 8, [&](std::int64_t row, std::int64_t column) {
           return scales[static_cast<std::size_t>(row / 2 * 2 + column / 4)];
         }));
}

TEST_F(Quantized, OneScaleForEachRowOrForAll) {
  const std::string bytes = element_bytes(5 * 4);
  const std::vector<float> scales = scales_from(5);
  const json compressed{
      {"quant_method", "compressed-tensors"},
      {"format", "float-quantized"},
      {"config_groups",
       {{"group_0",
         {{"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}}}}}}};
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{5, 1}, {5}}) {
    write({{"a.weight", "F8_E4M3", {5, 4}, bytes},
           {"a.input_scale", "F32", {1}, as_bytes({3})},
           {"a.weight_scale", "F32", shape, as_bytes(scales)}},
          compressed);
    expect("a.weight", {5, 4}, scaled(bytes, 4, [&](std::int64_t row, std::int64_t) {
             return scales[static_cast<std::size_t>(row)];
           }));
  }
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {1, 1}}) {
    write({{"a.weight", "F8_E4M3", {5, 4}, bytes},
           {"a.weight_scale", "F32", shape, as_bytes({0.3f})}},
          {{"quant_method", "fbgemm_fp8"}});
    expect("a.weight", {5, 4}, scaled(bytes, 4, [](std::int64_t, std::int64_t) { return 0.3f; }));
  }
}

TEST_F(Quantized, FusedExpertsHaveBlocksEach) {
  const std::string bytes = element_bytes(2 * 3 * 4);
  const std::vector<float> scales = scales_from(8);
  write({{"experts.down_proj", "F8_E4M3", {2, 3, 4}, bytes},
         {"experts.down_proj_scale_inv", "F32", {2, 2, 2}, as_bytes(scales)}},
        {{"quant_method", "fp8"}, {"weight_block_size", {2, 2}}});
  expect("experts.down_proj", {2, 3, 4},
         scaled(bytes, 4, [&](std::int64_t row, std::int64_t column) {
           return scales[static_cast<std::size_t>(row / 3 * 4 + row % 3 / 2 * 2 + column / 2)];
         }));
}

TEST_F(Quantized, ScalesMayBePowersOfTwo) {
  const std::string bytes = element_bytes(4);
  write({{"a.weight", "F8_E4M3", {1, 4}, bytes},
         {"a.weight_scale_inv", "F8_E8M0", {1, 2}, std::string("\x7d\x82", 2)}},
        {{"quant_method", "fp8"}, {"weight_block_size", {1, 2}}});
  expect("a.weight", {1, 4}, scaled(bytes, 4, [](std::int64_t, std::int64_t column) {
           return column < 2 ? 0.25f : 8.0f;
         }));
}

TEST_F(Quantized, MXFP4IsTransposed) {
  constexpr std::int64_t experts = 2, rows = 3, groups = 2;
  const std::string bytes = element_bytes(experts * rows * groups * 16);
  std::string exponents;
  for (int i = 0; i < experts * rows * groups; ++i) exponents += static_cast<char>(120 + i);
  const auto e2m1 = [](int bits) {
    const float sizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return (bits & 8) != 0 ? -sizes[bits & 7] : sizes[bits & 7];
  };
  std::vector<float> values(static_cast<std::size_t>(experts * groups * 32 * rows));
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t k = 0; k < groups * 32; ++k) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t group = (e * rows + r) * groups + k / 32;
        const int byte =
            static_cast<unsigned char>(bytes[static_cast<std::size_t>(group * 16 + k % 32 / 2)]);
        const float scale = std::ldexp(
            1.0f, static_cast<unsigned char>(exponents[static_cast<std::size_t>(group)]) - 127);
        values[static_cast<std::size_t>((e * groups * 32 + k) * rows + r)] =
            e2m1(k % 2 == 0 ? byte & 15 : byte >> 4) * scale;
      }
    }
  }
  write({{"experts.up_blocks", "U8", {experts, rows, groups, 16}, bytes},
         {"experts.up_scales", "U8", {experts, rows, groups}, exponents}},
        {{"quant_method", "mxfp4"}});
  expect("experts.up", {experts, groups * 32, rows}, values);
}

TEST_F(Quantized, TheResultHasNoQuantizationConfig) {
  write({{"a.weight", "F8_E4M3", {1, 4}, element_bytes(4)},
         {"a.weight_scale_inv", "F32", {1, 1}, as_bytes({2})},
         {"b", "F32", {2}, as_bytes({1, 2})}},
        {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}});
  TemporaryFolder folder;
  ConvertOptions options;
  options.to = "hf";
  options.verify = true;
  const ConvertReport report = convert(dir(), folder.path() / "out", options);
  const json config = json::parse(read_file(folder.path() / "out/config.json", 1 << 20));
  EXPECT_EQ(config, json({{"model_type", "other"}}));
  ASSERT_FALSE(report.notes.empty());
  EXPECT_EQ(report.notes.front(), "1 tensor of fp8 read as bfloat16");
  const auto plain = formats::hugging_face_format().open(folder.path() / "out");
  expect_equal(tensors_of(*plain), tensors_of(*open()));
}

TEST_F(Quantized, IsLoadedIntoAModel) {
  const std::string bytes = element_bytes(200 * 150);
  write({{"a.weight", "F8_E4M3", {200, 150}, bytes},
         {"a.weight_scale_inv", "F32", {2, 2}, as_bytes(scales_from(4))}},
        {{"quant_method", "fp8"}});
  std::vector<float> part(1000);
  std::vector<LogicalTensor> tensors{{"a.weight",
                                      DType::float32,
                                      {200, 150},
                                      {{19'123, 1000, reinterpret_cast<std::byte*>(part.data())}}}};
  load_hugging_face(dir(), tensors, {}, nullptr);
  for (std::size_t i = 0; i < part.size(); ++i) {
    const std::size_t at = 19'123 + i;
    const float scale = scales_from(4)[at / 150 / 128 * 2 + at % 150 / 128];
    ASSERT_EQ(part[i], to_float(to_bfloat16(e4m3(bytes[at]) * scale))) << at;
  }
}

TEST_F(Quantized, OtherMethodsAreRefusedByName) {
  const std::vector<RawTensor> plain{{"a", "F32", {1}, as_bytes({1})}};
  for (const auto& [method, name] :
       std::map<std::string, std::string>{{"gptq", "GPTQ"},
                                          {"awq", "AWQ"},
                                          {"bitsandbytes", "bitsandbytes"},
                                          {"hqq", "hqq"},
                                          {"modelopt", "modelopt"}}) {
    write(plain, {{"quant_method", method}});
    const std::string text = refusal();
    EXPECT_NE(text.find("quantised by " + name + ", which is not read; use"), std::string::npos)
        << text;
  }
  write(plain, {{"load_in_8bit", true}});
  EXPECT_NE(refusal().find("bitsandbytes"), std::string::npos);
  write(plain,
        {{"quant_method", "compressed-tensors"},
         {"format", "pack-quantized"},
         {"config_groups", {{"group_0", {{"weights", {{"num_bits", 4}, {"type", "int"}}}}}}}});
  EXPECT_NE(refusal().find("compressed-tensors (int of 4 bits, pack-quantized)"),
            std::string::npos);
}

TEST_F(Quantized, PackedTensorsAreRefusedWithoutAConfiguration) {
  const std::string word(4, '\0');
  for (const auto& [tensor, name] : std::map<std::string, std::string>{
           {"a.SCB", "bitsandbytes"}, {"a.weight.absmax", "bitsandbytes"}, {"a.qweight", "AWQ"}}) {
    write({{tensor, "I32", {1}, word}});
    EXPECT_NE(refusal().find("quantised by " + name), std::string::npos) << tensor;
  }
  write({{"a.qweight", "I32", {1}, word}, {"a.g_idx", "I32", {1}, word}});
  EXPECT_NE(refusal().find("quantised by GPTQ"), std::string::npos);
}

TEST_F(Quantized, ScalesThatDoNotFitAreRefused) {
  const std::string bytes = element_bytes(200 * 150);
  const json fp8{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{2, 3}, {3, 2}, {4, 1}, {199, 1}, {0}, {2, 2, 2}}) {
    std::int64_t number = 1;
    for (const std::int64_t size : shape) number *= size;
    write({{"a.weight", "F8_E4M3", {200, 150}, bytes},
           {"a.weight_scale_inv", "F32", shape,
            as_bytes(scales_from(static_cast<std::size_t>(number)))}},
          fp8);
    EXPECT_NE(refusal().find("do not fit 'a.weight' [200, 150]"), std::string::npos)
        << describe_shape(shape);
  }
  write({{"a.weight", "F8_E4M3", {200, 150}, bytes}}, fp8);
  EXPECT_NE(refusal().find("is F8_E4M3 without scales"), std::string::npos);
  for (const json& block : {json(5), json({0, 1}), json({1, -1}), json({1, 2.5}), json({1})}) {
    write({{"a.weight", "F8_E4M3", {200, 150}, bytes}},
          {{"quant_method", "fp8"}, {"weight_block_size", block}});
    EXPECT_NE(refusal().find("not [rows, columns]"), std::string::npos) << block;
  }
  write({{"a_blocks", "U8", {1, 2, 1, 16}, std::string(32, '\0')},
         {"a_scales", "U8", {1, 1, 1}, std::string(1, '\0')}},
        {{"quant_method", "mxfp4"}});
  EXPECT_NE(refusal().find("are not MXFP4"), std::string::npos);
}

TEST_F(Quantized, MXFP4WithoutItsPartsIsRefused) {
  const json mxfp4{{"quant_method", "mxfp4"}};
  const RawTensor blocks{"a_blocks", "U8", {1, 2, 1, 16}, std::string(32, '\0')};
  write({blocks}, mxfp4);
  EXPECT_NE(refusal().find("tensor 'a_blocks' is U8 without scales"), std::string::npos);
  write({{"a_blocks", "I8", {1, 2, 1, 16}, std::string(32, '\0')},
         {"a_scales", "U8", {1, 2, 1}, std::string(2, '\0')}},
        mxfp4);
  EXPECT_NE(refusal().find("tensor 'a_blocks' is I8; weights in MXFP4 are U8"), std::string::npos);
  write({blocks});  // of another model: a tensor with this name
  EXPECT_NO_THROW(open());
}

TEST_F(Quantized, ADeeplyNestedConfigurationIsIgnored) {
  write({{"b", "F32", {2}, as_bytes({1, 2})}});
  const std::size_t depth = 500'000;
  write_all(dir() / "config.json",
            R"({"a": )" + std::string(depth, '[') + std::string(depth, ']') + "}");
  EXPECT_NO_THROW(open());
}

}  // namespace
}  // namespace tessera::checkpoint

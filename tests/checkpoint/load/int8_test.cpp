// Weights of 8-bit integers in Hugging Face folders: decoded by the scales' rule, or as rows of
// kernels/cpu/matmul/int8_linear.h; what does not fit is refused.
#include "checkpoint/load/int8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "checkpoint/formats/known_formats.h"
#include "checkpoint/load/hugging_face.h"
#include "checkpoint/load/quantized_testing.h"
#include "kernels/cpu/matmul/int8_linear.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using nlohmann::json;

json int_scheme(int bits, const std::string& strategy) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "int-quantized"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", {{"num_bits", bits}, {"type", "int"}, {"strategy", strategy}}},
              {"input_activations",
               {{"num_bits", 8}, {"type", "int"}, {"strategy", "token"}, {"dynamic", true}}}}}}}};
}

std::string integer_bytes(std::size_t number) {
  std::string bytes(number, '\0');
  for (std::size_t i = 0; i < number; ++i) bytes[i] = static_cast<char>(i * 37 + i / 256 * 11);
  return bytes;
}

std::vector<float> int8_scales(std::size_t number) {
  std::vector<float> scales(number);
  for (std::size_t i = 0; i < number; ++i) scales[i] = 0.0137f * static_cast<float>(i + 1);
  return scales;
}

class Int8Weights : public ::testing::Test {
 protected:
  static constexpr std::int64_t rows = 37, columns = 21;

  void write(const std::vector<RawTensor>& tensors, const json& scheme) {
    write_raw(dir() / "model.safetensors", tensors);
    json config{{"model_type", "other"}};
    if (!scheme.is_null()) config["quantization_config"] = scheme;
    write_all(dir() / "config.json", config.dump());
  }
  void write_weight(const std::vector<std::int64_t>& shape, const std::vector<float>& scales,
                    const std::string& dtype = "F32") {
    write({{"a.weight", "I8", {rows, columns}, integers_},
           {"a.weight_scale", dtype, shape, dtype == "F32" ? as_bytes(scales) : bf16_bytes(scales)},
           {"a.input_scale", "F32", {1}, as_bytes({3})}},
          int_scheme(8, "channel"));
  }
  [[nodiscard]] fs::path dir() const { return dir_.path(); }
  std::unique_ptr<formats::Source> open() { return formats::hugging_face_format().open(dir()); }
  std::string refusal() {
    return error_of([&] { open(); });
  }
  // scale(row, column) of each element.
  void expect_decoded(const std::string& dtype,
                      const std::function<float(std::size_t, std::size_t)>& scale) {
    std::vector<float> values;
    for (std::size_t i = 0; i < integers_.size(); ++i) {
      const auto integer = static_cast<signed char>(integers_[i]);
      values.push_back(static_cast<float>(integer) * scale(i / columns, i % columns));
    }
    for (const std::int64_t step : {1 << 20, 7, 1}) {
      const auto source = open();
      const FoundTensors found = tensors_of(*source, step);
      ASSERT_EQ(found.size(), 1u);
      const FoundTensor& tensor = found.at("model/a.weight");
      EXPECT_EQ(tensor.dtype, dtype);
      EXPECT_TRUE(tensor.bytes == (dtype == "F32" ? as_bytes(values) : bf16_bytes(values))) << step;
    }
  }
  // The rows for products, loaded in pieces.
  std::string packed_rows(std::int64_t outputs, std::int64_t inputs) {
    const std::int64_t row_bytes = kernels::cpu::int8_row_bytes(inputs);
    std::string bytes(static_cast<std::size_t>(outputs * row_bytes), 'x');
    auto* const data = reinterpret_cast<std::byte*>(bytes.data());
    const std::int64_t cut = outputs * row_bytes / 3;
    std::vector<LogicalTensor> tensors{
        {"a.weight",
         uint8,
         {outputs, row_bytes},
         {{0, cut, data}, {cut, outputs * row_bytes - cut, data + cut}}}};
    load_hugging_face(dir(), tensors, {}, nullptr);
    return bytes;
  }
  std::string integers_ = integer_bytes(rows * columns);

 private:
  TemporaryFolder dir_;
};

TEST_F(Int8Weights, AScaleForEachRow) {
  const std::vector<float> scales = int8_scales(rows);
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{rows, 1}, {rows}}) {
    write_weight(shape, scales);
    expect_decoded("F32", [&](std::size_t row, std::size_t) { return scales[row]; });
  }
  EXPECT_EQ(int8_weights(dir()),
            (std::map<std::string, std::vector<std::int64_t>>{{"a.weight", {rows, columns}}}));
}

// A model that was made for other activations computes with the decoded weights.
TEST_F(Int8Weights, ProductsAreThoseOfIntegersOnlyIfTheFolderSaysSo) {
  const std::vector<RawTensor> tensors{
      {"a.weight", "I8", {rows, columns}, integers_},
      {"a.weight_scale", "F32", {rows, 1}, as_bytes(int8_scales(rows))}};
  const auto with = [&](const char* key, const json& value) {
    json scheme = int_scheme(8, "channel");
    json& activations = scheme["config_groups"]["group_0"]["input_activations"];
    if (key == nullptr) {
      activations = value;
    } else {
      activations[key] = value;
    }
    write(tensors, scheme);
    expect_decoded("F32", [&](std::size_t row, std::size_t) { return int8_scales(rows)[row]; });
    return int8_weights(dir()).size();
  };
  EXPECT_EQ(with("dynamic", true), 1u);
  EXPECT_EQ(with(nullptr, nullptr), 0u);
  EXPECT_EQ(with("dynamic", false), 0u);
  EXPECT_EQ(with("num_bits", 4), 0u);
  EXPECT_EQ(with("type", "float"), 0u);
  EXPECT_EQ(with("strategy", "tensor"), 0u);
  EXPECT_EQ(with("symmetric", false), 0u);
  write(tensors, nullptr);
  EXPECT_TRUE(int8_weights(dir()).empty());
}

TEST_F(Int8Weights, AScaleForEachColumnOrForAll) {
  const std::vector<float> scales = int8_scales(columns);
  write_weight({1, columns}, scales);
  expect_decoded("F32", [&](std::size_t, std::size_t column) { return scales[column]; });
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{1}, {}}) {
    write_weight(shape, {0.25f});
    expect_decoded("F32", [&](std::size_t, std::size_t) { return 0.25f; });
  }
}

TEST_F(Int8Weights, ScalesInBfloat16GiveBfloat16) {
  std::vector<float> scales = int8_scales(rows);
  for (float& scale : scales) scale = to_float(to_bfloat16(scale));
  write_weight({rows, 1}, scales, "BF16");
  expect_decoded("BF16", [&](std::size_t row, std::size_t) { return scales[row]; });
}

TEST_F(Int8Weights, RowsForProducts) {
  const std::vector<float> scales = int8_scales(rows);
  const std::int64_t row_bytes = kernels::cpu::int8_row_bytes(columns);
  std::string expected(static_cast<std::size_t>(rows * row_bytes), '\0');
  for (std::int64_t row = 0; row < rows; ++row) {
    char* const at = expected.data() + row * row_bytes;
    std::memcpy(at, integers_.data() + row * columns, columns);
    std::memcpy(at + row_bytes - 4, &scales[static_cast<std::size_t>(row)], 4);
  }
  write_weight({rows, 1}, scales);
  EXPECT_TRUE(packed_rows(rows, columns) == expected);
}

TEST_F(Int8Weights, RowsForProductsOfTransposedWeights) {
  const std::vector<float> scales = int8_scales(columns);
  const std::int64_t row_bytes = kernels::cpu::int8_row_bytes(rows);
  std::string expected(static_cast<std::size_t>(columns * row_bytes), '\0');
  for (std::int64_t out = 0; out < columns; ++out) {
    char* const at = expected.data() + out * row_bytes;
    for (std::int64_t in = 0; in < rows; ++in) {
      at[in] = integers_[static_cast<std::size_t>(in * columns + out)];
    }
    std::memcpy(at + row_bytes - 4, &scales[static_cast<std::size_t>(out)], 4);
  }
  write_weight({1, columns}, scales);
  EXPECT_TRUE(packed_rows(columns, rows) == expected);
}

TEST_F(Int8Weights, ScalesThatDoNotFitAreRefused) {
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{rows, 2}, {rows - 1, 1}, {columns}, {rows, 1, 1}, {0}}) {
    write_weight(shape, int8_scales(static_cast<std::size_t>(elements_of(shape))));
    EXPECT_NE(refusal().find("do not fit 'a.weight' I8 [37, 21]"), std::string::npos) << refusal();
  }
  write({{"a.weight", "I8", {rows, columns}, integers_},
         {"a.weight_scale", "I32", {rows, 1}, as_bytes(int8_scales(rows))}},
        nullptr);
  EXPECT_NE(refusal().find("'a.weight_scale' I32 [37, 1] do not fit"), std::string::npos);
  write({{"a.weight", "I8", {rows * columns}, integers_},
         {"a.weight_scale", "F32", {1}, as_bytes({1})}},
        nullptr);
  EXPECT_NE(refusal().find("do not fit"), std::string::npos) << "a vector";
}

TEST_F(Int8Weights, ScalesThatAreNotFiniteAreRefused) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> scales = int8_scales(rows);
    scales[11] = bad;
    write_weight({rows, 1}, scales);
    const std::string decoded = error_of([&] { tensors_of(*open(), 100); });
    EXPECT_NE(decoded.find("scale 11 of 'a.weight_scale' is"), std::string::npos) << decoded;
    EXPECT_EQ(error_of([&] { packed_rows(rows, columns); }), decoded);
  }
}

TEST_F(Int8Weights, IntegersWithoutScales) {
  const RawTensor alone{"a.weight", "I8", {rows, columns}, integers_};
  write({alone}, int_scheme(8, "channel"));
  EXPECT_NE(refusal().find("tensor 'a.weight' is I8 without scales ('a.weight_scale')"),
            std::string::npos);
  write({alone}, nullptr);  // integers that mean themselves
  const FoundTensors found = tensors_of(*open(), 100);
  EXPECT_EQ(found.at("model/a.weight").dtype, "I8");
  EXPECT_EQ(found.at("model/a.weight").bytes, integers_);
}

TEST_F(Int8Weights, OtherKindsOfIntegersAreRefused) {
  const std::vector<RawTensor> tensors{
      {"a.weight", "I8", {rows, columns}, integers_},
      {"a.weight_scale", "F32", {rows, 1}, as_bytes(int8_scales(rows))},
      {"a.weight_zero_point", "I8", {rows, 1}, integer_bytes(rows)}};
  write(tensors, int_scheme(8, "channel"));
  EXPECT_NE(refusal().find("has zero points ('a.weight_zero_point')"), std::string::npos);
  write(tensors, int_scheme(8, "group"));
  EXPECT_NE(refusal().find("compressed-tensors (int of 8 bits"), std::string::npos) << refusal();
  json asymmetric = int_scheme(8, "channel");
  asymmetric["config_groups"]["group_0"]["weights"]["symmetric"] = false;
  write(tensors, asymmetric);
  EXPECT_NE(refusal().find("compressed-tensors (asymmetric int of 8 bits"), std::string::npos)
      << refusal();
}

TEST_F(Int8Weights, TrainingIsRefusedWithTheWayOut) {
  write_weight({rows, 1}, int8_scales(rows));
  const std::string text = error_of([&] { refuse_int8_training(dir()); });
  EXPECT_NE(text.find("stores weights as 8-bit integers, as 'a.weight', which cannot be trained"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("NEW_FOLDER --to hf --dtype fp32"), std::string::npos) << text;
  write({{"a.weight", "F32", {1}, as_bytes({1})}}, nullptr);
  EXPECT_NO_THROW(refuse_int8_training(dir()));
  EXPECT_TRUE(int8_weights(dir()).empty());
  EXPECT_TRUE(int8_weights(dir() / "nothing").empty());
}

}  // namespace
}  // namespace tessera::checkpoint

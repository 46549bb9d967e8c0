// Two checkpoints are compared by names, shapes and values, whatever their formats are.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/convert/diff.h"
#include "checkpoint/formats/gguf_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

class Diff : public ::testing::Test {
 protected:
  void SetUp() override {
    write_small_model(first(), small_llama_tensors(), small_llama_config());
    write_small_model(second(), small_llama_tensors(), small_llama_config());
  }
  // Replaces one element of the second model.
  void put(const std::string& name, std::size_t element, float value) {
    const fs::path path = second() / "model.safetensors";
    std::string bytes = read_all(path);
    const SafetensorsFile file(path);
    std::memcpy(bytes.data() + file.find(name)->begin + element * sizeof value, &value,
                sizeof value);
    write_all(path, bytes);
  }
  [[nodiscard]] DiffReport compared(double tolerance = 0) const {
    return diff(first(), second(), {.tolerance = tolerance});
  }
  [[nodiscard]] fs::path first() const { return folder_.path() / "a"; }
  [[nodiscard]] fs::path second() const { return folder_.path() / "b"; }
  static const TensorDiff& of(const DiffReport& report, const std::string& name) {
    for (const TensorDiff& each : report.tensors) {
      if (each.name == name) return each;
    }
    throw std::runtime_error("no tensor " + name);
  }
  TemporaryFolder folder_;
};

TEST_F(Diff, EqualModels) {
  const DiffReport report = compared();
  EXPECT_EQ(report.different, 0u);
  EXPECT_EQ(report.tensors.size(), small_llama_tensors().size());
  const TensorDiff& head = of(report, "lm_head.weight");
  double sum = 0;
  for (const float value : floats_of(first() / "model.safetensors", "lm_head.weight")) {
    sum += double{value} * value;
  }
  EXPECT_NEAR(head.first_norm, std::sqrt(sum), 1e-9);
  EXPECT_EQ(head.second_norm, head.first_norm);
  EXPECT_EQ(head.largest, 0);
}

TEST_F(Diff, TheLargestDifferenceDecides) {
  const auto values = floats_of(first() / "model.safetensors", "model.norm.weight");
  put("model.norm.weight", 3, values[3] + 0.5f);
  const double wanted = std::fabs(double{values[3] + 0.5f} - double{values[3]});
  const DiffReport report = compared();
  EXPECT_EQ(report.different, 1u);
  EXPECT_EQ(of(report, "model.norm.weight").difference, Difference::values);
  EXPECT_EQ(of(report, "model.norm.weight").largest, wanted);
  EXPECT_EQ(compared(wanted).different, 0u);
  EXPECT_EQ(compared(wanted * 0.99).different, 1u);
}

TEST_F(Diff, WhatIsNotANumberDiffersFromNumbersAlone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  put("model.norm.weight", 3, nan);
  EXPECT_EQ(of(compared(1e30), "model.norm.weight").largest,
            std::numeric_limits<double>::infinity());
  EXPECT_EQ(compared(1e30).different, 1u);
  EXPECT_EQ(diff(second(), second(), {}).different, 0u);
}

TEST_F(Diff, NamesAndShapes) {
  auto tensors = small_llama_tensors();
  tensors[0].name = "model.other.weight";
  tensors[1].shape = {gguf_width / 2};
  write_small_model(second(), tensors, small_llama_config());
  const DiffReport report = compared(1e30);
  EXPECT_EQ(report.different, 3u);
  EXPECT_EQ(of(report, "model.embed_tokens.weight").difference, Difference::only_in_first);
  EXPECT_EQ(of(report, "model.other.weight").difference, Difference::only_in_second);
  EXPECT_EQ(of(report, "model.norm.weight").difference, Difference::shape);
  EXPECT_EQ(of(report, "model.norm.weight").second, "F32 [32]");
}

TEST_F(Diff, FormatsAndDtypesMayDiffer) {
  convert(first(), folder_.path() / "m.gguf", {.to = "gguf", .type = "f32"});
  convert(first(), folder_.path() / "step", {.to = "full"});
  const DiffReport same = diff(folder_.path() / "m.gguf", folder_.path() / "step", {});
  EXPECT_EQ(same.different, 0u);
  EXPECT_EQ(same.first_format, "gguf");
  convert(first(), folder_.path() / "q.gguf", {.to = "gguf", .type = "q8_0"});
  const DiffReport rounded = diff(first(), folder_.path() / "q.gguf", {});
  std::size_t matrices = 0;
  for (const NamedShape& tensor : small_llama_tensors()) matrices += tensor.shape.size() == 2;
  EXPECT_EQ(rounded.different, matrices);
  EXPECT_EQ(diff(first(), folder_.path() / "q.gguf", {.tolerance = 0.05}).different, 0u);
}

TEST_F(Diff, TiedHeadsAreTheTable) {
  write_small_model(second(), small_gpt2_tensors(), small_gpt2_config());
  convert(second(), folder_.path() / "m.gguf", {.to = "gguf", .type = "f32"});
  auto tensors = small_gpt2_tensors();
  tensors.push_back({"lm_head.weight", {gguf_vocabulary, gguf_width}});
  write_small_model(first(), tensors, small_gpt2_config());
  const DiffReport report = diff(first(), folder_.path() / "m.gguf", {});
  EXPECT_EQ(of(report, "lm_head.weight").difference, Difference::values);  // it was drawn anew
  EXPECT_EQ(report.different, 1u);
}

// fp64 rounds both to 2^60.
TEST_F(Diff, IntegersAreComparedExactly) {
  const auto write = [](const fs::path& path, std::int64_t value) {
    write_safetensors(path, {{{"n", DType::int64, {1}}, &value}});
  };
  const fs::path a = folder_.path() / "a.safetensors";
  const fs::path b = folder_.path() / "b.safetensors";
  constexpr std::int64_t large = std::int64_t{1} << 60;
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  for (const auto& [left, right, apart] :
       {std::tuple{large, large + 1, 1.0},
        {large, large, 0.0},
        {-large, -large - 3, 3.0},
        {least, std::numeric_limits<std::int64_t>::max(), 18446744073709551616.0}}) {
    fs::remove(a);
    fs::remove(b);
    write(a, left);
    write(b, right);
    EXPECT_EQ(diff(a, b, {}).tensors.at(0).largest, apart);
  }
}

TEST_F(Diff, IntegersAreComparedExactlyWithFloats) {
  const fs::path a = folder_.path() / "a.safetensors";
  const fs::path b = folder_.path() / "b.safetensors";
  constexpr std::int64_t large = std::int64_t{1} << 60;
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [left, right, apart] :
       {std::tuple{large + 1, 0x1p60, 1.0},
        {large, 0x1p60, 0.0},
        {-large - 3, -0x1p60, 3.0},
        {most, 0x1p63, 1.0},
        {least, -0x1p63, 0.0},
        {most, 0x1p64, 0x1p63},
        {least, -0x1p64, 0x1p63},
        {std::int64_t{3}, 2.75, 0.25},
        {std::int64_t{2}, 2.75, 0.75},
        {std::int64_t{-3}, -2.75, 0.25},
        {std::int64_t{3}, -infinity, infinity},
        {std::int64_t{3}, std::numeric_limits<double>::quiet_NaN(), infinity}}) {
    fs::remove(a);
    fs::remove(b);
    write_safetensors(a, {{{"n", DType::int64, {1}}, &left}});
    write_safetensors(b, {{{"n", DType::float64, {1}}, &right}});
    EXPECT_EQ(diff(a, b, {}).tensors.at(0).largest, apart) << left << ' ' << right;
    EXPECT_EQ(diff(b, a, {}).tensors.at(0).largest, apart) << right << ' ' << left;
  }
}

}  // namespace
}  // namespace tessera::checkpoint

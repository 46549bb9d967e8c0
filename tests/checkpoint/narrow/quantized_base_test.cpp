// A base as the numbers of its codes, alone and with an adapter merged in.
#include "checkpoint/narrow/quantized_base.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/low_precision.h"
#include "checkpoint/convert/merged_source.h"
#include "checkpoint/formats/known_formats.h"
#include "checkpoint/load/peft.h"
#include "checkpoint/support.h"
#include "engine/ops/products/quantized.h"
#include "engine/tensor_ops.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;

// A layer [64, 64] and a table in bf16, and an adapter of rank 1 for the layer.
class NumbersOfABase : public ::testing::Test {
 protected:
  NumbersOfABase() {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal(0, 0.02f);
    for (BFloat16& value : weight_) value = to_bfloat16(normal(generator));
    fs::create_directories(base());
    fs::create_directories(adapter());
    write_safetensors(base() / "model.safetensors",
                      {{{"net.l.weight", bfloat16, {64, 64}}, weight_.data()},
                       {{"net.t.weight", bfloat16, {64, 64}}, weight_.data()}});
    write_safetensors(adapter() / peft_tensors_file,
                      {{{"base_model.model.net.l.lora_A.weight", float32, {1, 64}}, a_.data()},
                       {{"base_model.model.net.l.lora_B.weight", float32, {64, 1}}, b_.data()}});
    const nlohmann::json config{{"peft_type", "LORA"},
                                {"r", 1},
                                {"lora_alpha", 1},
                                {"target_modules", {"l"}},
                                {"base_model_name_or_path", base().string()}};
    write_all(adapter() / peft_config_file, config.dump());
  }

  [[nodiscard]] std::unique_ptr<NumbersOfCodes> open(QuantizedFormat format) const {
    return open_numbers_of_codes(formats::open_as_stored(base()), format, layers_);
  }
  // The elements of a weight, from one read for each of the parts.
  static std::vector<float> read(formats::Source& source, const std::string& name,
                                 const std::vector<std::int64_t>& parts = {64 * 64}) {
    const auto& tensors = source.contents().tensors;
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& tensor) { return tensor.name == name; });
    std::vector<BFloat16> raw(64 * 64);
    std::int64_t first = 0;
    for (const std::int64_t n : parts) {
      source.read(static_cast<std::size_t>(found - tensors.begin()), first, n,
                  reinterpret_cast<std::byte*>(raw.data() + first));
      first += n;
    }
    std::vector<float> values;
    for (const BFloat16 value : raw) values.push_back(to_float(value));
    return values;
  }
  // The values of the weight after quantize() and dequantize().
  [[nodiscard]] std::vector<float> numbers(QuantizedFormat format) const {
    std::vector<float> values;
    for (const BFloat16 value : weight_) values.push_back(to_float(value));
    const Tensor codes = quantize(Tensor::from(values, Shape{64, 64}), format);
    const Tensor all = dequantize(codes, 64, 64, float32);
    return {all.data_as<float>(), all.data_as<float>() + all.elements()};
  }
  static float rounded(float value) { return to_float(to_bfloat16(value)); }

  [[nodiscard]] fs::path base() const { return folder_.path() / "base"; }
  [[nodiscard]] fs::path adapter() const { return folder_.path() / "adapter"; }

  TemporaryFolder folder_;
  std::vector<BFloat16> weight_ = std::vector<BFloat16>(64 * 64);
  std::vector<float> a_ = std::vector<float>(64, 0.0007f), b_ = std::vector<float>(64, 1.3f);
  const std::map<std::string, bool> layers_{{"net.l.weight", false}};
};

constexpr QuantizedFormat base_formats[] = {QuantizedFormat::nf4, QuantizedFormat::int8};

TEST_F(NumbersOfABase, AreRoundedToTheStoredDtype) {
  for (const QuantizedFormat format : base_formats) {
    std::vector<float> wanted = numbers(format);
    for (float& value : wanted) value = rounded(value);
    const auto source = open(format);
    EXPECT_EQ(read(*source, "net.l.weight"), wanted);
    EXPECT_EQ(read(*source, "net.l.weight", {1, 100, 3995}), wanted);
    EXPECT_NE(read(*source, "net.t.weight"), wanted);
  }
}

// A rounding before the sum and one after it would be another result.
TEST_F(NumbersOfABase, AMergedWeightIsRoundedOnce) {
  for (const QuantizedFormat format : base_formats) {
    std::vector<float> wanted = numbers(format), twice = wanted;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const float added = b_[i / 64] * a_[i % 64];
      twice[i] = rounded(rounded(wanted[i]) + added);
      wanted[i] = rounded(wanted[i] + added);
    }
    EXPECT_NE(wanted, twice);
    const auto merged = open_merged(adapter(), open(format), layers_);
    EXPECT_EQ(read(*merged, "net.l.weight"), wanted);
    EXPECT_EQ(read(*merged, "net.l.weight", {1, 100, 3995}), wanted);
  }
}

}  // namespace
}  // namespace tessera::checkpoint

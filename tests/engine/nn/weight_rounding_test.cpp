// Weights that are rounded in training have the values of GGUF's blocks, and gradients pass through
// the rounding.
#include "engine/nn/weight_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "engine/tensor_ops.h"
#include "kernels/blocks.h"

namespace tessera {
namespace {

constexpr WeightRounding roundings[] = {WeightRounding::q8_0, WeightRounding::q4_0};

kernels::cpu::BlockCodec codec_of(WeightRounding rounding) {
  return rounding == WeightRounding::q8_0 ? kernels::cpu::q8_0_codec() : kernels::cpu::q4_0_codec();
}

// The values that a file gives back.
std::vector<float> through_file(const std::vector<float>& values, WeightRounding rounding) {
  const kernels::cpu::BlockCodec codec = codec_of(rounding);
  const auto blocks = static_cast<std::int64_t>(values.size()) / codec.elements;
  std::vector<std::byte> encoded(static_cast<std::size_t>(blocks) * codec.bytes);
  std::vector<float> read(values.size());
  EXPECT_TRUE(codec.encode(values.data(), encoded.data(), blocks));
  codec.decode(encoded.data(), read.data(), blocks);
  return read;
}

std::vector<float> random_values(std::int64_t count, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Equal as numbers: a rounded -0 may be +0 in the other.
void expect_equal(const Tensor& rounded, const std::vector<float>& expected) {
  const auto values = rounded.to_vector();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], expected[i]) << i;
}

TEST(WeightRounding, IsThatOfAFile) {
  for (const WeightRounding rounding : roundings) {
    for (const float deviation : {1e-30f, 1e-7f, 0.02f, 1.0f, 5e3f}) {
      const auto values = random_values(64 * 96, deviation, 5);
      expect_equal(round_to_blocks(Tensor::from(values, {64, 96}), rounding),
                   through_file(values, rounding));
    }
  }
}

TEST(WeightRounding, IsThatOfAFileForEqualMagnitudesHalvesAndZeros) {
  std::vector<float> values(32 * 4, 0.0f);
  for (std::size_t i = 0; i < 32; ++i) {
    values[32 + i] = i % 2 == 0 ? 1.0f : -1.0f;  // the first one decides the sign
    values[64 + i] = (static_cast<float>(i) - 15.5f) / 15.5f * 127;  // q8_0's halves
    values[96 + i] = -(static_cast<float>(i) - 16.0f) / 2;           // q4_0's halves
  }
  values[64] = -127;
  for (const WeightRounding rounding : roundings) {
    expect_equal(round_to_blocks(Tensor::from(values, {4, 32}), rounding),
                 through_file(values, rounding));
  }
}

TEST(WeightRounding, RoundedValuesStayAsTheyAre) {
  const Tensor x = Tensor::from(random_values(32 * 40, 0.02f, 7), {40, 32});
  for (const WeightRounding rounding : roundings) {
    const Tensor once = round_to_blocks(x, rounding);
    EXPECT_EQ(round_to_blocks(once, rounding).to_vector(), once.to_vector());
  }
}

TEST(WeightRounding, ABlockThatNoScaleHoldsIsNotANumber) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
    auto values = random_values(96, 1.0f, 9);
    values[40] = bad;
    for (const WeightRounding rounding : roundings) {
      const auto rounded = round_to_blocks(Tensor::from(values, {3, 32}), rounding).to_vector();
      for (std::size_t i = 0; i < rounded.size(); ++i) {
        ASSERT_EQ(std::isfinite(rounded[i]), i < 32 || i >= 64) << bad << " at " << i;
      }
    }
  }
}

TEST(WeightRounding, GradientsAreThoseOfTheRoundedWeight) {
  for (const WeightRounding rounding : roundings) {
    for (const WeightLayout layout : {WeightLayout::out_in, WeightLayout::in_out}) {
      manual_seed(3);
      nn::Linear layer(64, 12, nn::LinearOptions{.layout = layout});
      EXPECT_TRUE(layer->round_weight(rounding));
      const Tensor x = Tensor::from(random_values(5 * 64, 1.0f, 11), {5, 64});
      Tensor weight = layer->weight().detach();
      EXPECT_NE(weight.to_vector(), layer->named_parameters()[0].tensor.to_vector());
      weight.set_requires_grad(true);
      sum(linear(x, weight, layer->bias(), layout)).backward();
      const auto expected = weight.grad().to_vector();
      sum(layer(x)).backward();
      EXPECT_EQ(layer->named_parameters()[0].tensor.grad().to_vector(), expected);
    }
  }
}

// Rows that are looked up are rows of the rounded table.
TEST(WeightRounding, AnEmbeddingReadsItsRoundedTable) {
  manual_seed(4);
  nn::Embedding table(10, 32);
  ASSERT_TRUE(table->round_weight(WeightRounding::q4_0));
  const Tensor ids = Tensor::from<std::int32_t>({7, 0, 7}, {3});
  EXPECT_EQ(table(ids).to_vector(), embedding(ids, table->weight()).to_vector());
}

struct ThreeLayers : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(40, 32));
  nn::Linear second = register_module("second", nn::Linear(32, 8));
  nn::Linear third = register_module("third", nn::Linear(32, 8));
};

TEST(WeightRounding, LayersWithoutWholeBlocksAndNamedOnesStayAsTheyAre) {
  ThreeLayers net;
  EXPECT_EQ(round_weights(net, WeightRounding::q8_0, {"third"}),
            std::vector<std::string>{"second"});
  EXPECT_EQ(net.first->weight().impl(), net.first->named_parameters()[0].tensor.impl());
  EXPECT_EQ(net.third->weight().impl(), net.third->named_parameters()[0].tensor.impl());
  nn::Linear narrow(31, 4);
  try {
    round_weights(*narrow, WeightRounding::q8_0);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    EXPECT_STREQ(error.what(),
                 "no layer's weights can be rounded: the inputs of a layer must be a "
                 "multiple of 32");
  }
}

TEST(WeightRounding, RefusesOtherShapesAndTypes) {
  EXPECT_THROW(round_to_blocks(Tensor::zeros({4, 33}), WeightRounding::q8_0), std::logic_error);
  EXPECT_THROW(round_to_blocks(Tensor::zeros({32}, int32), WeightRounding::q8_0), std::logic_error);
}

}  // namespace
}  // namespace tessera

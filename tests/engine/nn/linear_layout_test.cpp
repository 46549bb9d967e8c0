// A linear layer whose weight is stored in a layout for computing only gives the same results, bit
// for bit.
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/random.h"

namespace tessera {
namespace {

Tensor rows_of(std::int64_t rows, std::int64_t in) {
  std::mt19937 random(static_cast<unsigned>(rows * 10'000 + in));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(rows * in));
  for (float& value : values) value = normal(random);
  return Tensor::from(values, {rows, in});
}

TEST(LinearLayout, ResultsStayTheSameToTheBit) {
  manual_seed(3);
  const NoGradGuard no_grad;
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{384, 384},
                                {384, 1536},
                                {1536, 384},
                                {33, 12},
                                {5, 1}}) {
    for (const bool with_bias : {true, false}) {
      nn::Linear layer(in, out, nn::LinearOptions{.bias = with_bias});
      std::vector<Tensor> inputs, before;
      for (const std::int64_t rows : {1, 7, 16, 17, 61, 250}) {
        inputs.push_back(rows_of(rows, in));
        before.push_back(layer(inputs.back()));
      }
      layer->lay_in_first();
      EXPECT_EQ(layer->layout(), WeightLayout::in_out);
      EXPECT_EQ(layer->weight().shape(), (Shape{in, out}));
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_EQ(layer(inputs[i]).to_vector(), before[i].to_vector())
            << in << " to " << out << ", " << inputs[i].size(0) << " rows";
      }
      layer->lay_in_first();  // already in this layout
      EXPECT_EQ(layer(inputs[0]).to_vector(), before[0].to_vector());
    }
  }
}

TEST(LinearLayout, OnlyFloat32ChangesItsLayout) {
  const nn::ParameterDTypeGuard in(bfloat16);
  nn::Linear layer(4, 4);
  EXPECT_THROW(layer->lay_in_first(), std::logic_error);
}

}  // namespace
}  // namespace tessera

// AdamW with 8-bit and with bf16 moments, beside AdamW.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/ops.h"
#include "engine/optim/adamw_8bit.h"
#include "engine/optim/optimizer.h"

namespace tessera {
namespace {

using Numbers = std::vector<double>;

// Moments of 8 bits: a byte an element, and a scale for each block of 256. Those of small
// parameters, and the others' within a rounding of the codes, are AdamW's.
TEST(AdamW8Bit, FollowsAdamWInAQuarterOfItsMemory) {
  const Tensor large = nn::make_parameter({30, 20}, nn::normal(0, 1));
  const Tensor same = large.clone().set_requires_grad(true);
  const Tensor small = nn::make_parameter({9}, nn::normal(0, 1));
  const std::vector<nn::NamedParameter> both = {{"large", large, {30, 20}}, {"small", small, {9}}};
  optim::AdamW8Bit optimizer(both, {.lr = 0.01, .min_8bit_size = 600});
  optim::AdamW wide({{"large", same, {30, 20}}}, {.lr = 0.01});
  for (int step = 0; step < 20; ++step) {
    for (const Tensor& parameter : {large, same, small}) mean(square(parameter)).backward();
    optimizer.step();
    wide.step();
    optimizer.zero_grad();
    wide.zero_grad();
  }
  EXPECT_EQ(optimizer.state_bytes(), 2 * 600 + 2 * 3 * sizeof(float) + 2 * 9 * sizeof(float));
  EXPECT_EQ(optimizer.state(0, "exp_avg_scale").shape(), Shape({3}));
  EXPECT_EQ(optimizer.state(0, "exp_avg_8bit").shape(), Shape({30, 20}));
  EXPECT_EQ(optimizer.state_names_of(1), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  const Numbers narrow = large.to_vector(), expected = same.to_vector();
  // Elements move by 0.2. The codes of small ones in a block are coarse.
  double difference = 0;
  for (std::size_t i = 0; i < narrow.size(); ++i)
    difference += std::abs(narrow[i] - expected[i]) / static_cast<double>(narrow.size());
  EXPECT_LT(difference, 0.01);
  const Tensor wide_parameter = Tensor::zeros({700}, float64).set_requires_grad(true);
  EXPECT_THROW(optim::AdamW8Bit({{"p", wide_parameter, {700}}}, {.min_8bit_size = 1}), Error);
}

// The first moments of 500 equal elements after one step, which has this number.
Numbers rounded_moments(const std::string& name, std::uint64_t seed, std::int64_t step) {
  const Tensor parameter = Tensor::full({500}, 1).set_requires_grad(true);
  optim::AdamW optimizer({{name, parameter, {500}}}, {.state_dtype = bfloat16, .seed = seed});
  optimizer.set_step_counts({step - 1});
  sum(parameter * 0.1).backward();
  optimizer.step();
  return optimizer.state(0, "exp_avg").to_vector();
}

// Draws follow from the seed, the parameter's name, the step and the element.
TEST(AdamW, RoundsBf16MomentsByDrawsOfTheirOwn) {
  const Numbers moments = rounded_moments("p", 1, 1);
  EXPECT_EQ(std::set<double>(moments.begin(), moments.end()).size(), 2u);  // up and down
  EXPECT_EQ(rounded_moments("p", 1, 1), moments);
  EXPECT_NE(rounded_moments("p", 2, 1), moments);
  EXPECT_NE(rounded_moments("q", 1, 1), moments);
  EXPECT_NE(rounded_moments("p", 1, 2), moments);
}

TEST(AdamW, HasBf16Moments) {
  const Tensor narrow = nn::make_parameter({500}, nn::normal(0, 1));
  const Tensor same = narrow.clone().set_requires_grad(true);
  optim::AdamW optimizer({{"p", narrow, {500}}}, {.lr = 0.01, .state_dtype = bfloat16, .seed = 1});
  optim::AdamW wide({{"p", same, {500}}}, {.lr = 0.01});
  for (int step = 0; step < 20; ++step) {
    for (const Tensor& parameter : {narrow, same}) mean(square(parameter)).backward();
    optimizer.step();
    wide.step();
    optimizer.zero_grad();
    wide.zero_grad();
  }
  EXPECT_EQ(optimizer.state_bytes(), 2 * 500 * sizeof(std::uint16_t));
  const Numbers values = narrow.to_vector(), expected = same.to_vector();
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 0.004);
  EXPECT_THROW(optim::AdamW({{"p", same, {500}}}, {.state_dtype = float16}), std::logic_error);
}

}  // namespace
}  // namespace tessera

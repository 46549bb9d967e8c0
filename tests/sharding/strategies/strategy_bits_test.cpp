// Strategies give the bits of NO_SHARD on one to four ranks, and those of one rank up to rounding.
#include "sharding/strategies/strategy_bits.h"

#include <cmath>

#include "base/error.h"
#include "models/gpt2/gpt2.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::describe;
using testing::expect_equal_strategies;
using testing::same_bits;
using testing::toy_options;
using testing::train_toy;
using testing::TrainingCase;
using testing::Trajectory;

class StrategyBits : public ::testing::TestWithParam<TrainingCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, StrategyBits, ::testing::ValuesIn(testing::training_cases()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(StrategyBits, Float32) {
  for (int world = 1; world <= 4; ++world) expect_equal_strategies(world, {}, GetParam());
}

TEST_P(StrategyBits, BFloat16) {
  for (int world = 1; world <= 4; ++world) expect_equal_strategies(world, bfloat16, GetParam());
}

// Gradients are sent in fp32 although the parameters are bf16.
TEST(StrategyBitsWire, ReduceDtype) {
  ShardingOptions plain = toy_options(Strategy::no_shard);
  plain.param_dtype = bfloat16;
  plain.reduce_dtype = float32;
  const Trajectory expected = train_toy(4, plain);
  for (ShardingOptions options : all_strategies(4)) {
    options.param_dtype = bfloat16;
    options.reduce_dtype = float32;
    EXPECT_TRUE(same_bits(expected, train_toy(4, options))) << describe(options);
  }
  plain.reduce_dtype.reset();
  EXPECT_FALSE(same_bits(expected, train_toy(4, plain)));
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, double relative) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE(std::abs(a[i] - b[i]), relative * std::abs(a[i])) << a[i] << " and " << b[i];
  }
}

TEST(StrategyBitsOneRank, TrainsTheSameLargerBatch) {
  for (const double dropout : {0.0, 0.1}) {
    const Trajectory one = train_toy(1, toy_options(Strategy::no_shard),
                                     {.dropout = dropout, .steps = 8, .batch = 12});
    for (const int world : {2, 3, 4}) {
      const Trajectory many = train_toy(world, toy_options(Strategy::full_shard),
                                        {.dropout = dropout, .steps = 8, .batch = 12 / world});
      expect_close(one.mean_losses(), many.mean_losses(), 1e-4);
      expect_close(one.norms, many.norms, 1e-3);
    }
  }
}

TEST(StrategyBitsReductionGroup, OneNumberOneSum) {
  ShardingOptions plain = toy_options(Strategy::no_shard);
  const Trajectory tree = train_toy(6, plain);
  plain.reduction_group = 3;
  const Trajectory by_three = train_toy(6, plain);
  EXPECT_FALSE(same_bits(tree, by_three));  // another order, other roundings
  for (const Strategy strategy : {Strategy::shard_optimizer, Strategy::full_shard}) {
    ShardingOptions options = toy_options(strategy);
    EXPECT_TRUE(same_bits(tree, train_toy(6, options))) << describe(options);
    options.reduction_group = 3;
    EXPECT_TRUE(same_bits(by_three, train_toy(6, options))) << describe(options);
  }
  ShardingOptions hybrid = toy_options(Strategy::hybrid_shard, 3);
  EXPECT_TRUE(same_bits(by_three, train_toy(6, hybrid)));  // the default for these groups
  hybrid.reduction_group = 3;
  EXPECT_TRUE(same_bits(by_three, train_toy(6, hybrid)));
  hybrid.group_size = 6;
  EXPECT_TRUE(same_bits(by_three, train_toy(6, hybrid)));
  hybrid.group_size = 2;
  hybrid.reduction_group = 0;
  EXPECT_TRUE(same_bits(tree, train_toy(6, hybrid)));
}

// Orders of which a group's sums are not a part, and groups that do not divide the world.
TEST(StrategyBitsReductionGroup, RefusesIncompatibleGroups) {
  const auto message = [](int group_size, int reduction_group) -> std::string {
    ShardingOptions options = toy_options(Strategy::hybrid_shard, group_size);
    options.reduction_group = reduction_group;
    try {
      train_toy(6, options, {.steps = 0});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration);
      return error.what();
    }
    return "nothing";
  };
  EXPECT_NE(message(3, 2).find("reduction_group 2 and group_size 3"), std::string::npos);
  EXPECT_NE(message(2, 3).find("use reduction_group 2"), std::string::npos);
  EXPECT_NE(message(3, 1).find("use reduction_group 3"), std::string::npos);
  EXPECT_NE(message(2, 4).find("reduction_group 4 does not divide the world of 6 ranks"),
            std::string::npos);
  EXPECT_NE(message(4, 0).find("HYBRID_SHARD needs a group_size that divides the world of 6"),
            std::string::npos);
  EXPECT_NE(message(0, 0).find("got 0"), std::string::npos);
}

// A model of the library, with dropout in all its places.
TEST(StrategyBitsGpt2, AllStrategies) {
  const auto make = [](double dropout) {
    models::Gpt2Config config;
    config.vocab_size = 31;
    config.n_positions = 8;
    config.n_embd = 16;
    config.n_layer = 2;
    config.n_head = 2;
    config.n_inner = 64;
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = dropout;
    return std::make_unique<models::GPT2LMHeadModel>(config);
  };
  const TrainingCase what{.dropout = 0.1, .micro_batches = 2, .max_norm = 0.01};
  Trajectory expected;
  for (ShardingOptions options : all_strategies(4)) {
    options.wrap = WrapPolicy::transformer({"GPT2Block"});
    const Trajectory got = testing::train_ranks(4, options, what, make, 8, 31);
    if (expected.losses.empty()) expected = got;  // NO_SHARD is the first
    EXPECT_TRUE(same_bits(expected, got)) << describe(options);
  }
}

}  // namespace
}  // namespace tessera

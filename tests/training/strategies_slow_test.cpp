// The whole matrix: strategies x 1 to 4 ranks x precision, dropout, accumulation, clipping, tied or
// untied, with the example's own text.
#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

using testing::expect_close;
using testing::expect_equal_bits;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

class EveryWorld : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Strategies, EveryWorld, ::testing::Values(1, 2, 3, 4));

TEST_P(EveryWorld, InFp32) {
  expect_equal_bits(GetParam());
}

TEST_P(EveryWorld, InBf16WithDropoutAccumulationAndHardClipping) {
  expect_equal_bits(GetParam(), {{"sharding.mixed_precision", "bf16"},
                                 {"model.dropout", "0.1"},
                                 {"train.gradient_accumulation_steps", "2"},
                                 {"train.max_grad_norm", "0.01"}});
}

TEST_P(EveryWorld, InBf16WithLocalSums) {
  expect_equal_bits(GetParam(), {{"sharding.mixed_precision", "bf16"},
                                 {"train.gradient_accumulation_steps", "2"},
                                 {"train.sync_each_batch", "false"}});
}

TEST_P(EveryWorld, InBf16WithFp32OnTheWireAndOtherPrefetch) {
  expect_equal_bits(GetParam(), {{"sharding.mixed_precision", "bf16"},
                                 {"sharding.reduce_dtype", "fp32"},
                                 {"sharding.backward_prefetch", "NO_PREFETCH"},
                                 {"sharding.forward_prefetch", "false"}});
}

TEST_P(EveryWorld, AgreesWithOneRankOfTheWholeBatch) {
  const TrainingFolder folder;
  const int world = GetParam();
  for (const std::string strategy : {"FULL_SHARD", "NO_SHARD"}) {
    const Settings common =
        folder.small() + Settings{{"train.steps", "50"}, {"sharding.sharding_strategy", strategy}};
    const auto settings = [&](int batch, const std::string& name) {
      return common + Settings{{"data.batch_size", std::to_string(batch)},
                               {"log.jsonl", folder.path(strategy + name)}};
    };
    train(1, settings(2 * world, "one"));
    train(world, settings(2, "all"));
    expect_close(folder.path(strategy + "all"), folder.path(strategy + "one"), 1e-4);
    train(world, settings(2 * world, "split") + Settings{{"data.split_batches", "true"}});
    EXPECT_EQ(testing::losses_in(folder.path(strategy + "split")),
              testing::losses_in(folder.path(strategy + "all")));
  }
}

// Groups of three are not a subtree of six ranks: one key makes the order of sums the same. It
// cannot also be that of groups of two, which is refused.
TEST(StrategiesOfSixRanks, OneReductionGroupGivesTheSameBits) {
  const Settings order = {{"sharding.reduction_group", "3"}};
  expect_equal_bits(6, {1, 3, 6}, order);
  const TrainingFolder folder;
  const testing::Ended other = testing::run_program(testing::launched(
      6, testing::train_arguments(folder.small() + order +
                                  Settings{{"sharding.sharding_strategy", "HYBRID_SHARD"},
                                           {"sharding.group_size", "2"}})));
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.err.find("reduction_group 3 and group_size 2"), std::string::npos) << other.err;
}

TEST(StrategiesOfTheExample, ItsOwnTextAndModel) {
  if (!std::filesystem::exists("/usr/share/common-licenses/GPL-3")) {
    GTEST_SKIP() << "no /usr/share/common-licenses/GPL-3 on this machine";
  }
  const TrainingFolder folder;
  std::vector<std::string> expected;
  for (const char* strategy : {"NO_SHARD", "FULL_SHARD"}) {
    const std::string jsonl = folder.path(strategy);
    train(2,
          {{"sharding.sharding_strategy", strategy}, {"log.jsonl", jsonl}, {"train.steps", "2"}});
    const auto losses = testing::losses_in(jsonl);
    ASSERT_EQ(losses.size(), 2u);
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << strategy;
  }
}

}  // namespace
}  // namespace tessera::training

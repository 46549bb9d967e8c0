// Ranks with unequal parts of each batch: the samples, loss and gradient of a step stay the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/places/step_statistics.h"
#include "sharding/policy/strategy.h"
#include "support/errors.h"
#include "support/step_gradient.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::MadeTask;
using testing::run_small;
using testing::StepGradient;
using testing::TemporaryFolder;

// The gradient of a step of 12 samples, which the net's dropout tells apart.
StepGradient of_twelve(int ranks, std::int64_t micro_batches, const std::vector<double>& weights,
                       const ShardingOptions& sharding = {}, bool sync_each_batch = true) {
  TrainerOptions options;
  options.batch_size = 12 / ranks / micro_batches;
  options.gradient_accumulation_steps = micro_batches;
  options.rank_weights.given = weights;
  options.sharding = sharding;
  options.sync_each_batch = sync_each_batch;
  return testing::gradient_of_step(ranks, options, [] { return std::make_unique<MadeTask>(); });
}

TEST(RankWeights, GiveTheGradientOfOneRank) {
  for (const std::int64_t micro_batches : {1, 2}) {
    const StepGradient expected = of_twelve(1, micro_batches, {});
    for (const std::vector<double>& weights :
         {std::vector<double>{3, 2, 1}, {1, 1, 4}, {1, 1, 1}}) {
      const StepGradient got = of_twelve(3, micro_batches, weights);
      EXPECT_NEAR(got.loss, expected.loss, 1e-6 * expected.loss);
      EXPECT_LE(testing::largest_difference(expected, got), 1e-6);
    }
  }
}

TEST(RankWeights, GiveEveryStrategyTheSameBits) {
  const std::vector<double> weights{1, 3, 1, 1};
  ShardingOptions sharding;
  for (const bool sync_each_batch : {true, false}) {
    const StepGradient expected = of_twelve(1, 1, {});
    sharding.strategy = Strategy::no_shard;
    const StepGradient bits = of_twelve(4, 1, weights, sharding, sync_each_batch);
    EXPECT_LE(testing::largest_difference(expected, bits), 1e-6);
    for (const StrategyRow& row : strategy_table) {
      sharding.strategy = row.strategy;
      for (const int group : {1, 2, 4}) {
        sharding.group_size = group;
        sharding.reduction_group = 4;
        const StepGradient got = of_twelve(4, 1, weights, sharding, sync_each_batch);
        EXPECT_EQ(got.loss, bits.loss) << row.name << group;
        EXPECT_EQ(got.gradient, bits.gradient) << row.name << group;
        if (row.shards != ShardGroup::group) break;
      }
    }
  }
}

struct WeightedCurve {
  std::vector<float> losses;
  StepMetrics last;
  std::vector<double> imbalances;
  StepStatistics memory;
};

// The steps of rank 0 until `until`, with a save behind the last one.
WeightedCurve run_until(std::int64_t until, const RankWeightOptions& weights,
                        const std::string& folder, const testing::SmallRun& run = {.ranks = 2}) {
  testing::SmallRun small = run;
  small.options.rank_weights = weights;
  small.options.checkpoint.dir = folder;
  WeightedCurve curve;
  run_small(small, [&](Trainer& trainer) {
    WeightedCurve mine;
    if (!folder.empty()) (void)trainer.resume();
    while (trainer.position().steps < until) {
      mine.last = trainer.step().value();
      mine.losses.push_back(mine.last.loss);
      mine.imbalances.push_back(mine.last.imbalance.value_or(0));
    }
    mine.memory = trainer.step_memory();
    if (!folder.empty()) (void)trainer.save();
    if (trainer.context().is_main()) curve = mine;
  });
  return curve;
}

void expect_near(const std::vector<float>& losses, const std::vector<float>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-6 * expected[i]) << i;
  }
}

// A run with weights goes on with equal parts, and again with others: its losses are those of a run
// that always had equal parts, also over the end of an epoch (22 samples, 8 a step).
TEST(RankWeights, ResumeWithOthersIsTheSameRun) {
  const TemporaryFolder folder;
  const std::vector<float> expected = run_until(9, {}, "").losses;
  std::vector<float> losses;
  const auto go_on = [&](std::int64_t until, const RankWeightOptions& weights) {
    const WeightedCurve curve = run_until(until, weights, folder / "run");
    losses.insert(losses.end(), curve.losses.begin(), curve.losses.end());
  };
  go_on(3, {.given = {3, 1}});
  go_on(6, {});
  go_on(9, {.given = {1, 7}});
  expect_near(losses, expected);
  EXPECT_EQ(run_until(9, {.given = {5, 5}}, "").losses, expected);  // equal weights, equal bits
}

TEST(RankWeights, AreInTheMetrics) {
  const WeightedCurve curve = run_until(2, {.given = {3, 1}}, "");
  EXPECT_EQ(curve.last.rank_samples, (std::vector<std::int64_t>{6, 2}));
  EXPECT_GE(curve.last.imbalance.value(), 0);
  EXPECT_TRUE(run_until(2, {}, "").last.rank_samples.empty());
}

// Rank 1 needs twenty times as long for a sample, so that a rank that is held up by other programs
// for some milliseconds does not change who is slower.
class UnevenTask : public MadeTask {
 public:
  [[nodiscard]] Tensor loss(const tasks::Prepared& batch, const Context& context) override {
    const auto of_sample = std::chrono::microseconds(context.rank() == 1 ? 10000 : 500);
    if (!context.device().is_planned()) std::this_thread::sleep_for(of_sample * batch.samples);
    return MadeTask::loss(batch, context);
  }
};

testing::SmallRun slow_run() {
  testing::SmallRun run{.ranks = 2};
  run.options.batch_size = 12;
  run.make = [](const Context&, testing::DroppingNet&) { return std::make_unique<UnevenTask>(); };
  return run;
}

TEST(RankWeights, FollowTheSpeedOfTheRanks) {
  const TemporaryFolder folder;
  const RankWeightOptions measured{.measured = true, .rebalance_every = 5, .limit = 8};
  testing::SmallRun fast = slow_run();
  fast.make = [](const Context&, testing::DroppingNet&) { return std::make_unique<MadeTask>(); };
  const std::vector<float> expected = run_until(10, {}, "", fast).losses;
  const WeightedCurve first = run_until(9, measured, folder / "run", slow_run());
  ASSERT_EQ(first.last.rank_samples.size(), 2u);
  EXPECT_GE(first.last.rank_samples[0], 14);  // 23 if nothing else takes time
  EXPECT_EQ(first.last.rank_samples[0] + first.last.rank_samples[1], 24);
  // With equal parts it is 0.9 if nothing else takes time.
  const auto change = first.imbalances.begin() + 5;
  EXPECT_LT(*std::min_element(change, first.imbalances.end()),
            *std::max_element(first.imbalances.begin(), change));
  // The steps have places again after the change: the first two of each kind have none.
  EXPECT_EQ(first.memory.steps, 9u);
  EXPECT_EQ(first.memory.placed, 4u);
  EXPECT_EQ(first.memory.different, 0u);
  // The parts are in the checkpoint.
  const WeightedCurve resumed = run_until(10, measured, folder / "run", slow_run());
  EXPECT_EQ(resumed.last.rank_samples, first.last.rank_samples);
  std::vector<float> losses = first.losses;
  losses.insert(losses.end(), resumed.losses.begin(), resumed.losses.end());
  expect_near(losses, expected);
}

// A task whose loss is not a mean over samples.
class WholeTask : public MadeTask {
 public:
  [[nodiscard]] std::string needs_equal_batches() const override {
    return "each rank's batch has a loss of its own";
  }
};

TEST(RankWeights, AreRefusedForALossThatDependsOnTheSplit) {
  const auto refused = [](const RankWeightOptions& weights) {
    testing::SmallRun run{.ranks = 2};
    run.options.rank_weights = weights;
    run.make = [](const Context&, testing::DroppingNet&) { return std::make_unique<WholeTask>(); };
    return testing::error_of([&] { run_small(run, [](Trainer&) {}); }, ErrorCode::configuration);
  };
  const std::string expected =
      "TrainerOptions: rank_weights: the ranks' parts must be equal, because each rank's batch has "
      "a loss of its own; leave it out";
  EXPECT_EQ(refused({.given = {3, 1}}), expected);
  EXPECT_EQ(refused({.measured = true}), expected);
}

TEST(RankWeights, RefuseBadValues) {
  const auto refused = [](const RankWeightOptions& weights) {
    testing::SmallRun run{.ranks = 2};
    run.options.rank_weights = weights;
    return testing::error_of([&] { run_small(run, [](Trainer&) {}); }, ErrorCode::configuration);
  };
  EXPECT_EQ(refused({.given = {1, 2, 3}}),
            "TrainerOptions: rank_weights has 3 weights for 2 ranks; give one for each rank, or "
            "auto");
  EXPECT_NE(refused({.given = {1, 2}, .measured = true}).find("set one of the two"),
            std::string::npos);
  EXPECT_NE(refused({.measured = true, .rebalance_every = 0}).find("must be at least 1"),
            std::string::npos);
  EXPECT_NE(refused({.measured = true, .limit = 0.5}).find("rank_weights.limit is 0.5"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera

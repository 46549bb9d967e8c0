// A run whose steps grow: the bits of runs with each number of micro-batches, one after the other.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/optim/schedule.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::run_small;
using testing::TemporaryFolder;

TEST(StepRamp, HasANumberForEachStep) {
  const StepRamp ramp{{{3, 5}, {4, 2}, {9, 7}}};
  std::int64_t sum = 0;
  const std::vector<std::int64_t> expected = {4, 4, 5, 2, 2, 2, 2, 2, 7, 7};
  for (std::int64_t step = 1; step <= 10; ++step) {
    const std::int64_t number = expected[static_cast<std::size_t>(step - 1)];
    EXPECT_EQ(ramp.at(step, 4), number) << step;
    EXPECT_EQ(ramp.sum(step - 1, 4), sum) << step;
    sum += number;
  }
  EXPECT_EQ(ramp.largest(4), 7);
  EXPECT_EQ(ramp.largest(8), 8);
  EXPECT_EQ(StepRamp{}.sum(6, 2), 12);
  EXPECT_EQ(ramp.to_string(), "{3: 5, 4: 2, 9: 7}");
}

struct RampCurve {
  std::vector<float> losses;
  std::vector<double> samples;  // of each step
  std::int64_t batches = 0;
};

// The steps until `until` from the newest save in the folder, and a save behind them.
RampCurve go_on(const std::string& folder, std::int64_t until, std::int64_t micro_batches,
                const StepRamp& ramp, testing::SmallRun small = {.ranks = 2}) {
  small.options.gradient_accumulation_steps = micro_batches;
  small.options.accumulation_ramp = ramp;
  small.options.checkpoint.dir = folder;
  RampCurve run;
  run_small(small, [&](Trainer& trainer) {
    RampCurve mine;
    (void)trainer.resume();
    while (trainer.position().steps < until) {
      const StepMetrics step = trainer.step().value();
      mine.losses.push_back(step.loss);
      mine.samples.push_back(std::round(step.samples_per_s * step.step_s));
    }
    mine.batches = trainer.position().data.batches;
    (void)trainer.save();
    if (trainer.context().is_main()) run = mine;
  });
  return run;
}

// Under every strategy, with and without sums after each micro-batch, over the end of an epoch.
TEST(AccumulationRamp, IsTheRunsOfEachNumberOneAfterTheOther) {
  const StepRamp ramp{{{3, 3}, {5, 2}}};
  std::vector<std::vector<float>> of_all;
  for (const Strategy strategy : {Strategy::no_shard, Strategy::shard_optimizer,
                                  Strategy::shard_grad_op, Strategy::full_shard}) {
    const testing::SmallRun small{.ranks = 2,
                                  .options = {.sync_each_batch = strategy != Strategy::no_shard,
                                              .sharding = {.strategy = strategy}}};
    const TemporaryFolder folder;
    const RampCurve ramped = go_on(folder / "ramped", 6, 1, ramp, small);
    EXPECT_EQ(ramped.batches, 1 + 1 + 3 + 3 + 2 + 2);
    EXPECT_EQ(ramped.samples, (std::vector<double>{8, 8, 24, 24, 16, 16}));
    std::vector<float> in_turn;
    for (const auto& [until, micro_batches] : {std::pair{2, 1}, {4, 3}, {6, 2}}) {
      const RampCurve part = go_on(folder / "in-turn", until, micro_batches, {}, small);
      in_turn.insert(in_turn.end(), part.losses.begin(), part.losses.end());
      EXPECT_LE(part.batches, ramped.batches);
    }
    EXPECT_EQ(ramped.losses, in_turn) << name_of(strategy);
    // With sums after the last micro-batch alone these have another order.
    if (small.options.sync_each_batch) of_all.push_back(ramped.losses);
  }
  for (const std::vector<float>& losses : of_all) EXPECT_EQ(losses, of_all.front());
}

// In the middle of the ramp, on another world and on another ramp behind that place.
TEST(AccumulationRamp, IsResumed) {
  const TemporaryFolder folder;
  const StepRamp ramp{{{3, 3}, {5, 2}}};
  const RampCurve whole = go_on(folder / "whole", 6, 1, ramp);
  RampCurve parts = go_on(folder / "parts", 3, 1, ramp);
  const RampCurve rest = go_on(folder / "parts", 6, 7, {{{2, 9}, {4, 3}, {5, 2}}}, {.ranks = 1});
  parts.losses.insert(parts.losses.end(), rest.losses.begin(), rest.losses.end());
  ASSERT_EQ(parts.losses.size(), whole.losses.size());
  for (std::size_t i = 0; i < whole.losses.size(); ++i) {
    EXPECT_NEAR(parts.losses[i], whole.losses[i], 1e-6 * whole.losses[i]) << i;
  }
  EXPECT_EQ(rest.batches, whole.batches);
}

TEST(AccumulationRamp, RefusesBadNumbers) {
  const auto refusal = [](const StepRamp& ramp) {
    testing::SmallRun small;
    small.options.accumulation_ramp = ramp;
    return testing::error_of([&] { run_small(small, [](Trainer&) {}); }, ErrorCode::configuration);
  };
  EXPECT_NE(refusal({{{1, 2}}})
                .find("accumulation_ramp has a step that is 1: the first must be at least 2"),
            std::string::npos);
  EXPECT_NE(refusal({{{4, 2}, {4, 3}}}).find("is 4: steps must ascend, and 4 is before it"),
            std::string::npos);
  EXPECT_NE(refusal({{{4, 0}}}).find("accumulation_ramp of step 4 is 0: it must be at least 1"),
            std::string::npos);
}

// The ranks would wait for each other.
TEST(AccumulationRamp, OfOneRankAloneIsAnError) {
  testing::SmallRun small{.ranks = 2};
  small.change = [](const Context& context, TrainerOptions& options) {
    if (context.rank() == 1) options.accumulation_ramp = {{{3, 2}}};
  };
  const std::string refusal =
      testing::error_of([&] { run_small(small, [](Trainer&) {}); }, ErrorCode::configuration);
  EXPECT_NE(refusal.find("accumulation_ramp"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("{3: 2}"), std::string::npos) << refusal;
}

}  // namespace
}  // namespace tessera

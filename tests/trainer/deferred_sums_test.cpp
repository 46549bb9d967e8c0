// A run with ShardingOptions::defer_replica_sums: its losses, and what its steps communicate.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

struct AccumulatingRun {
  std::vector<float> losses;
  std::int64_t step_bytes = 0;  // of the last step
};

AccumulatingRun accumulating_run(Strategy strategy, std::int64_t micro_batches, bool defers) {
  AccumulatingRun result;
  TrainerOptions options;
  options.batch_size = 2;
  options.gradient_accumulation_steps = micro_batches;
  options.sharding.strategy = strategy;
  options.sharding.group_size = 2;
  options.sharding.defer_replica_sums = defers;
  testing::run_small({.ranks = 4, .options = options}, [&](Trainer& trainer) {
    AccumulatingRun mine;
    for (int step = 0; step < 5; ++step) {
      const StepMetrics metrics = trainer.step().value();
      mine.losses.push_back(metrics.loss);
      mine.step_bytes = metrics.comm_bytes;
    }
    if (trainer.context().is_main()) result = std::move(mine);
  });
  return result;
}

// The bytes that a step saves are those of all micro-batches but one.
TEST(DeferredSumsOfARun, AreSentOnceAStep) {
  for (const Strategy strategy : {Strategy::hybrid_shard, Strategy::hybrid_shard_zero2}) {
    std::vector<std::int64_t> saved;
    for (const std::int64_t micro_batches : {1, 2, 4}) {
      const AccumulatingRun each = accumulating_run(strategy, micro_batches, false);
      const AccumulatingRun once = accumulating_run(strategy, micro_batches, true);
      saved.push_back(each.step_bytes - once.step_bytes);
      ASSERT_EQ(each.losses.size(), once.losses.size());
      for (std::size_t i = 0; i < each.losses.size(); ++i) {
        EXPECT_NEAR(once.losses[i], each.losses[i], 1e-5 * each.losses[i]);
      }
    }
    EXPECT_EQ(saved[0], 0);
    EXPECT_GT(saved[1], 0);
    EXPECT_EQ(saved[2], 3 * saved[1]);
  }
}

}  // namespace
}  // namespace tessera

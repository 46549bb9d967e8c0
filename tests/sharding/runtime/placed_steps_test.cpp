// Steps whose memory has fixed places compute the same bits under every strategy, with
// recomputation, accumulation, bfloat16, unsharded() inside a step, and steps of other lengths.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "engine/device/memory_step.h"
#include "engine/places/step_statistics.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::describe;
using testing::same_bits;
using testing::toy_options;
using testing::ToyTransformer;
using testing::TrainingCase;

void expect_same_bits(int world, const ShardingOptions& options, TrainingCase what = {}) {
  what.steps = 5;
  const auto expected = testing::train_toy(world, options, what);
  what.placed = true;
  EXPECT_TRUE(same_bits(expected, testing::train_toy(world, options, what))) << describe(options);
}

TEST(PlacedSteps, HaveTheSameBitsUnderEveryStrategy) {
  for (const int world : {1, 2, 4}) {
    for (const ShardingOptions& options : testing::all_strategies(world)) {
      expect_same_bits(world, options);
    }
  }
}

TEST(PlacedSteps, HaveTheSameBitsInBfloat16WithDropoutAndRecomputation) {
  for (const auto how : {ActivationCheckpointing::full, ActivationCheckpointing::selective}) {
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.param_dtype = bfloat16;
    options.reduce_dtype = float32;
    options.activation_checkpointing = how;
    expect_same_bits(2, options, {.dropout = 0.2});
  }
}

TEST(PlacedSteps, HaveTheSameBitsWithAccumulation) {
  for (const bool no_sync : {false, true}) {
    expect_same_bits(2, toy_options(Strategy::shard_grad_op),
                     {.micro_batches = 3, .no_sync = no_sync, .max_norm = 0.1});
  }
}

// The losses of steps that read whole parameters in their middle, and, in `odd_steps`, train on
// fewer samples.
std::vector<double> losses_with_visits(bool placed, bool odd_steps, StepStatistics& memory) {
  std::vector<double> losses;
  testing::on_ranks(2, toy_options(Strategy::full_shard),
                    [&](Context& context, ToyTransformer& net, ShardedModel& model) {
                      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
                      for (int step = 0; step < 9; ++step) {
                        std::optional<MemoryStep> places;
                        if (placed) places.emplace(context.device());
                        const auto batch = testing::toy_batch(step + context.rank(),
                                                              odd_steps && step == 6 ? 1 : 2);
                        const Tensor loss = net.loss(batch.ids, batch.targets);
                        {
                          const auto whole = model.unsharded();
                          const Tensor values = net.named_parameters().front().tensor.detach();
                          if (context.is_main()) losses.push_back(sum(values * values).item());
                        }
                        loss.backward();
                        optimizer.step();
                        optimizer.zero_grad();
                        if (context.is_main()) losses.push_back(loss.item());
                      }
                      if (context.is_main()) {
                        memory = MemoryPool::current(context.device())->step_statistics();
                      }
                    });
  return losses;
}

TEST(PlacedSteps, MayReadWholeParameters) {
  StepStatistics unused, memory;
  EXPECT_EQ(losses_with_visits(false, false, unused), losses_with_visits(true, false, memory));
  EXPECT_EQ(memory.placed, 6u);
  EXPECT_EQ(memory.different, 0u);
}

TEST(PlacedSteps, AStepOfOtherSizesIsServedByThePool) {
  StepStatistics unused, memory;
  EXPECT_EQ(losses_with_visits(false, true, unused), losses_with_visits(true, true, memory));
  EXPECT_EQ(memory.placed, 5u);
  EXPECT_EQ(memory.different, 1u);
  EXPECT_EQ(memory.last.step, 7u);
}

}  // namespace
}  // namespace tessera

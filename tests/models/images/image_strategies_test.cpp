// ViT and CLIP with sharding: the same bits under every strategy, with dropout, adapters and
// recomputation, and the memory that the plan says.
#include <gtest/gtest.h>

#include "models/images/image_testing.h"
#include "sharding/plan/plan.h"

namespace tessera {
namespace {

using testing::ImageCase;
using testing::ImageNet;
using testing::same_bits;
using testing::Trajectory;

std::string describe(const ShardingOptions& options, const ImageCase& what) {
  return testing::describe(options) + (what.clip ? ", CLIP" : ", ViT") +
         (what.lora ? " with adapters" : "");
}

TEST(ImageModels, EveryStrategyGivesTheSameBits) {
  for (const bool clip : {false, true}) {
    for (const bool lora : {false, true}) {
      const ImageCase what{.clip = clip, .dropout = 0.1, .lora = lora};
      const Trajectory reference =
          testing::train_images(2, testing::toy_options(Strategy::no_shard), what);
      EXPECT_NE(reference.losses[0].front(), reference.losses[0].back());
      for (ShardingOptions options : testing::all_strategies(2)) {
        SCOPED_TRACE(describe(options, what));
        EXPECT_TRUE(same_bits(reference, testing::train_images(2, options, what)));
        if (options.strategy != Strategy::full_shard) continue;
        options.activation_checkpointing = ActivationCheckpointing::full;
        EXPECT_TRUE(same_bits(reference, testing::train_images(2, options, what)));
      }
    }
  }
}

TEST(ImageModels, ComputeInBfloat16) {
  for (const bool clip : {false, true}) {
    const ImageCase what{.clip = clip};
    ShardingOptions whole = testing::toy_options(Strategy::no_shard);
    const auto wide = testing::train_images(2, whole, what).mean_losses();
    whole.param_dtype = bfloat16;
    const Trajectory narrow = testing::train_images(2, whole, what);
    ShardingOptions sharded = testing::toy_options(Strategy::full_shard);
    sharded.param_dtype = bfloat16;
    EXPECT_TRUE(same_bits(narrow, testing::train_images(2, sharded, what))) << clip;
    EXPECT_NE(narrow.mean_losses().front(), wide.front());
    for (std::size_t i = 0; i < wide.size(); ++i) {
      EXPECT_NEAR(narrow.mean_losses()[i], wide[i], 0.1 * wide[i]) << clip << ", step " << i;
    }
  }
}

// Tables of tokens and of positions are units of their own, in a dtype of their own.
TEST(ImageModels, UnitsOfAnySizeGiveTheSameBits) {
  for (const bool clip : {false, true}) {
    ShardingOptions whole = testing::toy_options(Strategy::no_shard);
    whole.param_dtype = bfloat16;
    whole.keep_fp32 = {clip ? "Embedding" : "ViTEmbeddings"};
    const Trajectory reference = testing::train_images(2, whole, {.clip = clip});
    for (const std::int64_t least_unit : {1, 50, 500}) {
      ShardingOptions options = whole;
      options.strategy = Strategy::full_shard;
      SCOPED_TRACE(std::to_string(least_unit) + (clip ? ", CLIP" : ", ViT"));
      ASSERT_NO_THROW(EXPECT_TRUE(same_bits(
          reference, testing::train_images(2, options, {.clip = clip, .least_unit = least_unit}))));
    }
  }
}

// ViT's loss is a mean of its samples', CLIP's one of the whole batch.
TEST(ImageModels, TheNumberOfRanksChangesOnlyTheRounding) {
  for (const bool clip : {false, true}) {
    const ImageCase what{.clip = clip};
    const auto options = testing::toy_options(Strategy::full_shard);
    const auto alone = testing::train_images(1, options, what).mean_losses();
    for (const int world : {2, 3}) {
      const auto losses = testing::train_images(world, options, what).mean_losses();
      for (std::size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], alone[i], 2e-5) << clip << ", " << world << " ranks, step " << i;
      }
    }
  }
}

RankMemory run_two_steps(int world, const ShardingOptions& options, const ImageCase& what) {
  RankMemory memory;
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(5);
    ImageNet net;
    {
      const DeviceGuard deferred(Device::meta());
      net = testing::make_image_net(what);
    }
    ShardedModel model = fully_shard(*net.module, context, options);
    optim::AdamW optimizer(model.parameters(), {});
    for (int step = 0; step < 2; ++step) {
      const MemoryStep of_step(context.device());
      net.loss(0, 2, context).backward();
      (void)model.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    if (context.is_main()) memory = measure_memory(context);
  });
  return memory;
}

RankMemory plan_two_steps(int world, const ShardingOptions& options, const ImageCase& what) {
  const auto program = [&](Planning& planning) {
    ImageNet net;
    {
      const DeviceGuard deferred(Device::meta());
      net = testing::make_image_net(what);
    }
    ShardedModel model = fully_shard(*net.module, planning.context(), options);
    optim::AdamW optimizer(model.parameters(), {});
    for (int step = 0; step < 2; ++step) {
      net.loss(0, 2, planning.context()).backward();
      (void)model.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
      planning.end_step();
    }
  };
  return plan({.ranks = world}, program).memory;
}

TEST(ImageModels, ThePlanHasTheMemoryOfTheRun) {
  for (const bool clip : {false, true}) {
    for (const Strategy strategy : {Strategy::full_shard, Strategy::no_shard}) {
      for (const auto recompute : {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
        const ImageCase what{.clip = clip};
        ShardingOptions options = testing::of_layers(testing::toy_options(strategy), what);
        options.activation_checkpointing = recompute;
        SCOPED_TRACE(describe(options, what));
        const RankMemory planned = plan_two_steps(2, options, what);
        const RankMemory measured = run_two_steps(2, options, what);
        for (const MemoryKind kind :
             {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer,
              MemoryKind::communication, MemoryKind::activations}) {
          EXPECT_EQ(planned.of(kind), measured.of(kind)) << name_of(kind);
        }
        EXPECT_EQ(planned.total(), measured.total());
      }
    }
  }
}

}  // namespace
}  // namespace tessera

// Loss scaling: the changes of the factor, a step that all ranks skip, and fp16 training that is
// the same under every strategy and close to fp32's.
#include "sharding/context/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::same_bits;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;
using testing::Trajectory;

constexpr double infinite = std::numeric_limits<double>::infinity();

TEST(LossScaler, FallsWithAnOverflowAndGrowsAfterGoodSteps) {
  LossScaler scaler({.initial = 1024, .growth_interval = 3});
  EXPECT_TRUE(scaler.update(1.0));
  EXPECT_TRUE(scaler.update(2.0));
  EXPECT_FALSE(scaler.update(infinite));
  EXPECT_EQ(scaler.state(), (LossScaler::State{512, 0, 1}));
  EXPECT_FALSE(scaler.update(std::nan("")));
  EXPECT_EQ(scaler.state(), (LossScaler::State{256, 0, 2}));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(scaler.update(1.0));
  EXPECT_EQ(scaler.factor(), 256);
  EXPECT_TRUE(scaler.update(0.0));
  EXPECT_EQ(scaler.state(), (LossScaler::State{512, 0, 2}));
}

TEST(LossScaler, ContinuesFromItsState) {
  LossScaler first({.growth_interval = 3}), second({.growth_interval = 3});
  for (const double norm : {1.0, infinite, 1.0, 1.0}) first.update(norm);
  second.restore(first.state());
  EXPECT_TRUE(second.update(1.0));
  EXPECT_EQ(second.factor(), 65536);
  EXPECT_THROW(second.restore({3, 0, 0}), Error);
  EXPECT_THROW(second.restore({64, -1, 0}), Error);
}

TEST(LossScaler, StaysConstantWhereItIsFixed) {
  LossScaler scaler({.fixed = 128, .growth_interval = 1});
  EXPECT_TRUE(scaler.update(1.0));
  EXPECT_FALSE(scaler.update(infinite));
  EXPECT_EQ(scaler.factor(), 128);
  scaler.restore({4096, 0, 7});
  EXPECT_EQ(scaler.state(), (LossScaler::State{128, 0, 7}));
}

std::string scaler_refusal_of(const LossScaleOptions& options) {
  try {
    const LossScaler scaler(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::configuration);
    return error.what();
  }
  return "nothing";
}

TEST(LossScaler, RefusesInvalidFactors) {
  EXPECT_EQ(scaler_refusal_of({}), "nothing");
  EXPECT_EQ(scaler_refusal_of({.fixed = 1000}),
            "the loss scale must be a power of two, so that scaling changes no bit; got 1000");
  EXPECT_NE(scaler_refusal_of({.initial = 0}), "nothing");
  EXPECT_NE(scaler_refusal_of({.growth_factor = 1}), "nothing");
  EXPECT_NE(scaler_refusal_of({.growth_factor = 1.5}), "nothing");
  EXPECT_NE(scaler_refusal_of({.backoff_factor = 1}), "nothing");
  EXPECT_NE(scaler_refusal_of({.growth_interval = 0}), "nothing");
  EXPECT_NE(scaler_refusal_of({.initial = 1, .minimum = 2}), "nothing");
}

TEST(LossScaler, GivesUpBelowTheMinimum) {
  LossScaler scaler({.initial = 4, .minimum = 2});
  EXPECT_FALSE(scaler.update(infinite));
  try {
    scaler.update(infinite);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::numeric);
    EXPECT_NE(std::string(error.what())
                  .find("under the loss scale 2, and the next one, 1, is "
                        "below the smallest allowed, 2"),
              std::string::npos)
        << error.what();
  }
  LossScaler fixed({.fixed = 4});
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) fixed.update(infinite);
      },
      Error);
}

struct ScaledRun {
  Trajectory trajectory;
  LossScaler::State scaler;
};

// Two micro-batches per step, clipped; on rank `bad_rank` the second step's gradients overflow.
ScaledRun train_scaled(int world, ShardingOptions options, bool local_sums, int bad_rank = -1) {
  ScaledRun run;
  run.trajectory.losses.resize(static_cast<std::size_t>(world));
  testing::Collected collected;
  std::vector<LossScaler::State> states(static_cast<std::size_t>(world));
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    const auto rank = static_cast<std::size_t>(context.rank());
    manual_seed(3);
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, options);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    LossScaler scaler({.initial = 4096});
    for (int step = 0; step < 4; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        std::optional<ShardedModel::NoSync> scope;
        if (local_sums && micro == 0) scope.emplace(model);
        const auto batch = toy_batch((step * 2 + micro) * world + context.rank(), 2);
        const Tensor loss = net.loss(batch.ids, batch.targets) * 0.5;
        run.trajectory.losses[rank].push_back(loss.item());
        const bool overflows = context.rank() == bad_rank && step == 1 && micro == 1;
        (overflows ? scaler.scale(loss) * 1e30 : scaler.scale(loss)).backward();
      }
      const double norm = model.clip_grad_norm(0.5, scaler.factor());
      run.trajectory.losses[rank].push_back(norm);
      if (scaler.update(norm)) optimizer.step();
      optimizer.zero_grad();
    }
    collected.add(model);
    states[rank] = scaler.state();
  });
  for (const LossScaler::State& state : states) EXPECT_EQ(state, states.front());
  run.trajectory.parameters = collected.values();
  run.scaler = states.front();
  return run;
}

ShardingOptions in_float16(ShardingOptions options) {
  options.param_dtype = float16;
  return options;
}

TEST(LossScaling, SameBitsUnderEveryStrategy) {
  for (const int world : {2, 3, 4}) {
    for (const bool local_sums : {false, true}) {
      ShardingOptions plain = in_float16(toy_options(Strategy::no_shard));
      const ScaledRun expected = train_scaled(world, plain, local_sums);
      EXPECT_EQ(expected.scaler.skipped_steps, 0);
      for (const ShardingOptions& options : testing::all_strategies(world)) {
        EXPECT_TRUE(same_bits(expected.trajectory,
                              train_scaled(world, in_float16(options), local_sums).trajectory))
            << world << " ranks, " << testing::describe(options);
      }
    }
  }
}

// When one rank finds an overflow, all ranks skip the step, once, and then continue.
TEST(LossScaling, AllRanksSkipTheStepThatOverflowsOnOne) {
  for (const bool local_sums : {false, true}) {
    const ScaledRun expected =
        train_scaled(4, in_float16(toy_options(Strategy::no_shard)), local_sums, 2);
    EXPECT_EQ(expected.scaler, (LossScaler::State{2048, 2, 1}));
    for (const ShardingOptions& options : testing::all_strategies(4)) {
      const ScaledRun run = train_scaled(4, in_float16(options), local_sums, 2);
      EXPECT_EQ(run.scaler, expected.scaler) << testing::describe(options);
      EXPECT_EQ(run.trajectory.parameters, expected.trajectory.parameters)
          << testing::describe(options);
    }
  }
}

ShardingOptions kept_after_backward(ShardingOptions options) {
  options.reshard_after_forward = false;
  options.reshard_after_backward = false;
  return options;
}

ShardingOptions resharded_to_two(ShardingOptions options) {
  options.reshard_after_forward = 2;
  return options;
}

// A skipped step changes no parameter: gathered parameters that stay until the optimizer changes
// them stay valid and are not gathered again; those of which two ranks keep a part are gathered
// from them.
TEST(LossScaling, ASkippedStepKeepsGatheredParameters) {
  const auto expected = train_scaled(4, in_float16(toy_options(Strategy::no_shard)), true, 2);
  const ShardingOptions full = in_float16(toy_options(Strategy::full_shard));
  const ShardingOptions copies = in_float16(toy_options(Strategy::hybrid_shard, 2));
  for (const ShardingOptions& options :
       {resharded_to_two(full), kept_after_backward(full), kept_after_backward(copies)}) {
    for (const bool local_sums : {false, true}) {
      const ScaledRun run = train_scaled(4, options, local_sums, 2);
      EXPECT_EQ(run.scaler, expected.scaler) << testing::describe(options);
      if (local_sums) {
        EXPECT_EQ(run.trajectory.parameters, expected.trajectory.parameters);
      }
    }
    std::uint64_t after_update = 0, after_skip = 0;
    testing::on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 1e-2});
      for (int step = 0; step < 4; ++step) {
        const std::uint64_t before = model.communication().bytes;
        testing::train_once(context, net);
        if (context.is_main()) {
          (step == 3 ? after_skip : after_update) = model.communication().bytes - before;
        }
        model.clip_grad_norm(0, 1);  // no loss scale is required
        if (step != 2) optimizer.step();
        optimizer.zero_grad();
      }
    });
    EXPECT_LT(after_skip, after_update) << testing::describe(options);
  }
}

// fp32 loses nothing here, so a scale that is a power of two changes no bit.
TEST(LossScaling, ChangesNoBitOfFloat32) {
  const auto run = [](double scale) {
    testing::Collected collected;
    launch(2, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(3);
      ToyTransformer net;
      ShardedModel model = fully_shard(net, context, toy_options(Strategy::full_shard));
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      const LossScaler scaler({.fixed = scale});
      for (int step = 0; step < 3; ++step) {
        const auto batch = toy_batch(step * 2 + context.rank(), 2);
        scaler.scale(net.loss(batch.ids, batch.targets)).backward();
        model.clip_grad_norm(0.5, scaler.factor());
        optimizer.step();
        optimizer.zero_grad();
      }
      collected.add(model);
    });
    return collected.values();
  };
  EXPECT_EQ(run(1), run(65536));
}

TEST(LossScaling, Float16StaysCloseToFloat32) {
  const ShardingOptions wide = toy_options(Strategy::full_shard);
  const ScaledRun expected = train_scaled(2, wide, false),
                  run = train_scaled(2, in_float16(wide), false);
  for (std::size_t i = 0; i < expected.trajectory.losses[0].size(); ++i) {
    const double loss = expected.trajectory.losses[0][i];
    EXPECT_NEAR(run.trajectory.losses[0][i], loss, 1e-2 * loss) << i;
  }
}

}  // namespace
}  // namespace tessera

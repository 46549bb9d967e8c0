// Operations between the parts of a training step that must not change it.
#include <gtest/gtest.h>

#include <functional>

#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::same_bits;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;
using testing::Trajectory;

// Operations at the marked points of a training step that must not change the training.
struct Interruptions {
  using Action = std::function<void(ToyTransformer&, ShardedModel&)>;
  Action before_forward = {};
  Action before_backward = {};
  Action before_step = {};
};

Trajectory train(int world, const ShardingOptions& options, const Interruptions& interruptions) {
  Trajectory result;
  result.losses.resize(static_cast<std::size_t>(world));
  testing::Collected collected;
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(3);
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, options);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    const auto run = [&](const Interruptions::Action& action) {
      if (action) action(net, model);
    };
    for (int step = 0; step < 3; ++step) {
      run(interruptions.before_forward);
      const auto batch = toy_batch(step * world + context.rank(), 2);
      const Tensor loss = net.loss(batch.ids, batch.targets);
      run(interruptions.before_backward);
      loss.backward();
      run(interruptions.before_step);
      result.losses[static_cast<std::size_t>(context.rank())].push_back(loss.item());
      model.clip_grad_norm(0.5);
      optimizer.step();
      optimizer.zero_grad();
    }
    collected.add(model);
  });
  result.parameters = collected.values();
  return result;
}

void expect_harmless(const Interruptions& interruptions) {
  for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
    ShardingOptions options = toy_options(Strategy::no_shard);
    options.param_dtype = dtype;
    const Trajectory expected = train(2, options, {});
    for (const StrategyRow& row : strategy_table) {
      if (row.shards == ShardGroup::group) continue;  // the same as another strategy on two ranks
      options.strategy = row.strategy;
      EXPECT_TRUE(same_bits(expected, train(2, options, interruptions)))
          << testing::describe(options);
    }
  }
}

void evaluate(ToyTransformer& net, ShardedModel& /*model*/) {
  const NoGradGuard no_grad;
  const auto batch = toy_batch(100, 3);
  EXPECT_FALSE(net.loss(batch.ids, batch.targets).requires_grad());
}

TEST(Lifecycle, EvaluationAnywhere) {
  expect_harmless({.before_forward = evaluate});
  expect_harmless({.before_backward = evaluate});
  expect_harmless({.before_step = evaluate});
}

// A forward whose graph is dropped.
TEST(Lifecycle, ForwardWithoutBackward) {
  const auto forward = [](ToyTransformer& net, ShardedModel&) {
    const auto batch = toy_batch(100, 3);
    (void)net.loss(batch.ids, batch.targets);
  };
  expect_harmless({.before_forward = forward});
  expect_harmless({.before_backward = forward});
  expect_harmless({.before_step = forward});
}

TEST(Lifecycle, UnshardedScopesAnywhere) {
  const auto scope = [](ToyTransformer& net, ShardedModel& model) {
    const auto whole = unsharded(model);
    evaluate(net, model);
    const auto nested = model.unsharded();
  };
  expect_harmless({.before_forward = scope});
  expect_harmless({.before_backward = scope});
  expect_harmless({.before_step = scope});
}

// Two backwards, one after the other, equal one backward of both losses.
TEST(Lifecycle, SeveralBackwardsAddUp) {
  const auto another = [](ToyTransformer& net, ShardedModel&) {
    const auto batch = toy_batch(50, 2);
    net.loss(batch.ids, batch.targets).backward();
  };
  const Trajectory expected = train(2, toy_options(Strategy::no_shard), {.before_step = another});
  EXPECT_FALSE(same_bits(expected, train(2, toy_options(Strategy::no_shard), {})));
  for (const ShardingOptions& options : all_strategies(2)) {
    EXPECT_TRUE(same_bits(expected, train(2, options, {.before_step = another})))
        << testing::describe(options);
  }
}

// Both graphs exist before either backward runs.
TEST(Lifecycle, TwoGraphsAtOnce) {
  const auto run = [](const ShardingOptions& options) {
    testing::Collected collected;
    launch(2, [&](Context& context) {
      manual_seed(3);
      ToyTransformer net;
      ShardedModel model = fully_shard(net, context, options);
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      for (int step = 0; step < 2; ++step) {
        const auto a = toy_batch(step, 2), b = toy_batch(step + 10, 2);
        const Tensor first = net.loss(a.ids, a.targets);
        const Tensor second = net.loss(b.ids, b.targets);
        first.backward();
        second.backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      collected.add(model);
    });
    return collected.values();
  };
  const auto expected = run(toy_options(Strategy::no_shard));
  for (const ShardingOptions& options : all_strategies(2)) {
    EXPECT_EQ(run(options), expected) << testing::describe(options);
  }
}

}  // namespace
}  // namespace tessera

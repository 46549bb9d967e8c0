// Sums of no_sync() backwards that were never reduced: zero_grad() discards them, and calls that
// would silently lose them are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sharding/context/loss_scaler.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

constexpr auto no_sync_refusal = "summed inside no_sync()";

double plain_norm(const ShardingOptions& options) {
  double norm = 0;
  on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    train_once(context, net);
    const double mine = model.clip_grad_norm(0);
    if (context.is_main()) norm = mine;
  });
  return norm;
}

TEST(DiscardedSums, ZeroGradDropsUnreducedSums) {
  for (const ShardingOptions& options : all_strategies(2)) {
    const double expected = plain_norm(options);
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      for (int round = 0; round < 2; ++round) {
        {
          const auto scope = model.no_sync();
          train_once(context, net);
        }
        optimizer.zero_grad();
        train_once(context, net);
        EXPECT_EQ(model.clip_grad_norm(0), expected) << testing::describe(options);
        optimizer.zero_grad();
      }
    });
  }
}

// An optimizer of some of the parameters drops only their sums.
TEST(DiscardedSums, OfSomeParametersOnly) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      std::vector<nn::NamedParameter> parameters = model.parameters();
      const auto is_dropped = [](const nn::NamedParameter& p) {
        return p.name.find("norm") != std::string::npos;
      };
      train_once(context, net);
      const double once = model.grad_norm(is_dropped);
      const double others =
          model.grad_norm([&](const nn::NamedParameter& p) { return !is_dropped(p); });
      for (auto& parameter : parameters) parameter.tensor.zero_grad();
      {
        const auto scope = model.no_sync();
        train_once(context, net);
      }
      for (auto& parameter : parameters) {
        if (is_dropped(parameter)) parameter.tensor.zero_grad();
      }
      train_once(context, net);  // adds the same again to the kept sums
      EXPECT_NEAR(model.grad_norm(is_dropped), once, 1e-6 * once) << testing::describe(options);
      EXPECT_NEAR(model.grad_norm([&](const nn::NamedParameter& p) { return !is_dropped(p); }),
                  2 * others, 1e-5 * others)
          << testing::describe(options);
    });
  }
}

TEST(DiscardedSums, StepAndClipRefuseUnreducedSums) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::AdamW optimizer(model.parameters(), {});
      model.set_requires_gradient_sync(false);
      train_once(context, net);
      model.set_requires_gradient_sync(true);
      const auto expect_refused = [&](const std::string& message, const std::string& who) {
        EXPECT_NE(message.find(no_sync_refusal), std::string::npos) << message;
        EXPECT_EQ(message.find(who), 0) << message;
      };
      expect_refused(message_of<std::logic_error>([&] { optimizer.step(); }),
                     "an optimizer's step()");
      expect_refused(message_of<std::logic_error>([&] { model.clip_grad_norm(1.0); }),
                     "clip_grad_norm()");
      expect_refused(message_of<std::logic_error>([&] { (void)model.grad_norm(); }), "grad_norm()");
      optimizer.zero_grad();
      optimizer.step();  // nothing to do, and nothing to lose
      train_once(context, net);
      model.clip_grad_norm(1.0);
      optimizer.step();
    });
  }
}

// Clipping with a loss scale divides once; later gradients are not affected.
TEST(LossScale, GradientsAreDividedOnce) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      train_once(context, net);
      const double norm = model.clip_grad_norm(0);
      optimizer.zero_grad();
      for (int round = 0; round < 2; ++round) {
        const auto batch = toy_batch(context.rank(), 2);
        (net.loss(batch.ids, batch.targets) * 1024.0).backward();
        EXPECT_EQ(model.clip_grad_norm(0, 1024), norm);
        EXPECT_EQ(model.clip_grad_norm(0, 1024), norm);
        if (round == 0) {
          const std::string message =
              message_of<std::logic_error>([&] { train_once(context, net); });
          EXPECT_NE(message.find("divided already"), std::string::npos) << message;
        }
        optimizer.zero_grad();
      }
    });
  }
}

// A handle that was taken before the clipping reads the clipped gradients.
TEST(LossScale, OldHandlesReadClippedGradients) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      train_once(context, net);
      std::vector<Tensor> before;
      for (const auto& parameter : model.parameters()) before.push_back(parameter.tensor.grad());
      const double norm = model.clip_grad_norm(0);
      model.clip_grad_norm(norm / 8);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const Tensor now = model.parameters()[i].tensor.grad();
        ASSERT_TRUE(now.defined());
        EXPECT_EQ(before[i].to_vector(), now.to_vector());
      }
      double sum = 0;
      for (const Tensor& gradient : before) {
        for (const double value : gradient.to_vector()) sum += value * value;
      }
      EXPECT_GT(sum, 0);
      EXPECT_LT(std::sqrt(sum), norm / 4);
    });
  }
}

TEST(LossScale, Float16WithoutOneIsRefused) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.param_dtype = float16;
  on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
    train_once(context, net);
    const std::string message = message_of<std::logic_error>([&] { optimizer.step(); });
    EXPECT_NE(message.find("ts::LossScaler"), std::string::npos) << message;
    model.clip_grad_norm(0, 1);  // no loss scale is required
    optimizer.step();
  });
}

}  // namespace
}  // namespace tessera::testing

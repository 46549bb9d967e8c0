// Two losses over one trunk with one backward after the other, through units: the sum of two
// forwards and backwards.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::message_of;
using testing::ToyTransformer;

using Gradients = std::vector<std::vector<double>>;

struct TwoLosses {
  Tensor tokens, trunk;
};

TwoLosses losses_of(const Context& context, const ToyTransformer& net) {
  begin_batch({.step = 1, .first_sample = context.rank() * 2, .samples = 2});
  const auto batch = testing::toy_batch(context.rank() * 2, 2);
  const Tensor trunk = net.embed(batch.ids);
  return {cross_entropy(net.head(trunk), batch.targets), mean(square(trunk)) * 0.3};
}

Gradients take_gradients(ShardedModel& model) {
  Gradients all;
  for (auto& parameter : model.parameters()) {
    all.push_back(parameter.tensor.grad().to_vector());
    parameter.tensor.zero_grad();
  }
  return all;
}

void check_two_losses(const Context& context, const ToyTransformer& net, ShardedModel& model) {
  // A separate graph for each loss.
  losses_of(context, net).tokens.backward();
  losses_of(context, net).trunk.backward();
  const Gradients wanted = take_gradients(model);
  for (int round = 0; round < 2; ++round) {
    const TwoLosses losses = losses_of(context, net);
    losses.tokens.backward({}, true);
    losses.trunk.backward();
    EXPECT_EQ(take_gradients(model), wanted) << round;
    EXPECT_NE(message_of<std::logic_error>([&] { losses.trunk.backward(); }).find("retain_graph"),
              std::string::npos);
  }
  // The same backward twice, in one reduction.
  losses_of(context, net).tokens.backward();
  Gradients doubled = take_gradients(model);
  const Tensor loss = losses_of(context, net).tokens;
  {
    const auto scope = model.no_sync();
    loss.backward({}, true);
  }
  loss.backward();
  const Gradients got = take_gradients(model);
  for (std::size_t i = 0; i < got.size(); ++i) {
    for (std::size_t k = 0; k < got[i].size(); ++k)
      EXPECT_NEAR(got[i][k], 2 * doubled[i][k], 1e-6) << i;
  }
}

TEST(RetainGraph, AddsUpThroughUnitsUnderEveryStrategy) {
  for (const int world : {1, 2}) {
    for (ShardingOptions options : testing::all_strategies(world)) {
      for (const auto how : {ActivationCheckpointing::none, ActivationCheckpointing::full,
                             ActivationCheckpointing::selective}) {
        SCOPED_TRACE(testing::describe(options) + " " + std::to_string(static_cast<int>(how)));
        options.activation_checkpointing = how;
        launch(world, [&](Context& context) {
          const testing::OneThread one_thread;
          manual_seed(3);
          ToyTransformer net(0.1);
          ShardedModel model = fully_shard(net, context, options);
          check_two_losses(context, net, model);
          // Training continues.
          optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
          testing::train_once(context, net);
          optimizer.step();
        });
      }
    }
  }
}

// Users' hooks run while the unit's parameters are gathered, run again in a recomputation, and do
// not affect sharding's hooks.
TEST(ForwardHooks, ReadParametersOfTheirUnit) {
  for (const auto how : {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.activation_checkpointing = how;
    launch(2, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(3);
      ToyTransformer net;
      // Registered before fully_shard() and after it.
      int before = 0, after = 0;
      nn::Module* block = nullptr;
      for (const auto& [name, module] : net.named_modules()) {
        if (name == "blocks.1") block = module;
      }
      ASSERT_NE(block, nullptr);
      const auto sum_of_parameters = [](const nn::Module& module) {
        double total = 0;
        for (const auto& parameter : module.named_parameters()) {
          for (const double value : parameter.tensor.to_vector()) total += value * value;
        }
        return total;
      };
      const double wanted = sum_of_parameters(*block);
      block->register_forward_pre_hook([&](nn::Module& module, std::span<const Tensor> inputs) {
        EXPECT_EQ(inputs[0].shape(), (Shape{2, testing::toy_length, testing::toy_width}));
        EXPECT_EQ(sum_of_parameters(module), wanted);
        ++before;
      });
      ShardedModel model = fully_shard(net, context, options);
      HookHandle handle = block->register_forward_hook(
          [&](nn::Module& module, std::span<const Tensor>, std::span<Tensor>) {
            EXPECT_EQ(sum_of_parameters(module), wanted);
            ++after;
          });
      testing::train_once(context, net);
      const int runs = how == ActivationCheckpointing::none ? 1 : 2;
      EXPECT_EQ(before, runs);
      EXPECT_EQ(after, runs);
      handle.remove();
      testing::train_once(context, net);
      EXPECT_EQ(after, runs);
      EXPECT_NE(message_of<std::logic_error>([&] {
                  block->set_hooks(std::make_shared<ModuleHooks>());
                }).find("register_forward_hook()"),
                std::string::npos);
    });
  }
}

TEST(ErrorPlaces, NameTheModuleWithShardingToo) {
  testing::on_ranks(
      2, testing::toy_options(Strategy::full_shard),
      [](const Context&, const ToyTransformer& net, ShardedModel&) {
        const std::string message = message_of<std::logic_error>([&] {
          (void)net.head(Tensor::zeros({1, 2, 3}));
        });
        EXPECT_NE(message.find("(in blocks.1.norm1, of class LayerNorm)"), std::string::npos)
            << message;
      });
}

}  // namespace
}  // namespace tessera

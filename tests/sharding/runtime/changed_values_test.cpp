// With sharding: backwards through graphs that are older than an optimizer's step.
#include <gtest/gtest.h>

#include <string>

#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::message_of;
using testing::ToyTransformer;

TEST(ChangedValues, ABackwardThroughAGraphOlderThanTheStepIsRefusedUnderEveryStrategy) {
  for (const int world : {1, 2}) {
    for (ShardingOptions options : testing::all_strategies(world)) {
      for (const auto how : {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
        SCOPED_TRACE(testing::describe(options) + " " + std::to_string(static_cast<int>(how)));
        options.activation_checkpointing = how;
        testing::on_ranks(
            world, options, [](const Context& context, ToyTransformer& net, ShardedModel& model) {
              optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
              const auto batch = testing::toy_batch(context.rank(), 2);
              const Tensor stale = net.loss(batch.ids, batch.targets);
              testing::train_once(context, net);
              optimizer.step();
              const std::string message = message_of<std::logic_error>([&] { stale.backward(); });
              EXPECT_NE(message.find("has been written since the forward"), std::string::npos)
                  << message;
              // Later steps are right, averages of the weights too.
              for (int step = 0; step < 2; ++step) {
                optimizer.zero_grad();
                testing::train_once(context, net);
                optimizer.step();
                for (auto& parameter : model.parameters())
                  parameter.tensor.copy_from(parameter.tensor.clone());
              }
            });
      }
    }
  }
}

// Two models; a result of one is used after the other's step.
TEST(ChangedValues, OtherParametersMayChangeInBetween) {
  launch(2, [](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(3);
    ToyTransformer first;
    ToyTransformer second;
    const ShardingOptions options = testing::toy_options(Strategy::full_shard);
    ShardedModel of_first = fully_shard(first, context, options);
    ShardedModel of_second = fully_shard(second, context, options);
    optim::Sgd optimizer(of_second.parameters(), {.lr = 0.1});
    const auto batch = testing::toy_batch(context.rank(), 2);
    const Tensor trunk = first.embed(batch.ids);
    cross_entropy(second.head(trunk.detach()), batch.targets).backward();
    optimizer.step();
    cross_entropy(second.head(trunk), batch.targets).backward();
    EXPECT_TRUE(of_first.parameters().front().tensor.grad().defined());
  });
}

TEST(Sharding, AModuleWithAnothersHooksIsRefusedWithTheirOwner) {
  launch(1, [](Context& context) {
    ToyTransformer net;
    for (const auto& [name, module] : net.named_modules()) {
      if (name != "blocks.1") continue;
      auto hooks = std::make_shared<ModuleHooks>();
      hooks->owner = "a program";
      module->set_hooks(hooks);
    }
    const std::string message = message_of<std::logic_error>(
        [&] { (void)fully_shard(net, context, testing::toy_options(Strategy::full_shard)); });
    EXPECT_EQ(message.find("module blocks.1 has the hooks of a program, given by set_hooks()"), 0u)
        << message;
  });
}

}  // namespace
}  // namespace tessera

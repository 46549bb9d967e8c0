// A load between a forward and its backward changes what the backward reads: it is refused.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "sharding/sharding_testing.h"

namespace tessera::checkpoint {
namespace {

using tessera::testing::ToyTransformer;

TEST(LoadBeforeBackward, IsRefusedUnderEveryStrategy) {
  for (const ShardingOptions& sharding : tessera::testing::all_strategies(2)) {
    for (const auto how : {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
      SCOPED_TRACE(tessera::testing::describe(sharding));
      const testing::TemporaryFolder folder;
      ShardingOptions options = sharding;
      options.activation_checkpointing = how;
      tessera::testing::on_ranks(
          2, options, [&](const Context& context, ToyTransformer& net, ShardedModel& model) {
            optim::AdamW optimizer(model.parameters(), {.lr = 0.1});
            tessera::save(context, folder.path(), model, optimizer, {.step = 1});
            tessera::testing::train_once(context, net);
            optimizer.step();
            optimizer.zero_grad();
            const auto batch = tessera::testing::toy_batch(context.rank(), 2);
            const Tensor stale = net.loss(batch.ids, batch.targets);
            (void)tessera::load(context, folder.path() / "step-1", model, optimizer);
            const std::string message =
                tessera::testing::message_of<std::logic_error>([&] { stale.backward(); });
            EXPECT_NE(message.find("has been written since the forward"), std::string::npos)
                << message;
            optimizer.zero_grad();
            tessera::testing::train_once(context, net);  // of the loaded weights
            optimizer.step();
          });
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint

// AdamW with 8-bit and with bf16 moments and schedule-free AdamW on ranks that share a GPU: the
// bits of NO_SHARD there, also with evaluations between the steps, and state on the host is
// refused.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_under_test.h"
#include "engine/optim/adamw_8bit.h"
#include "engine/optim/schedule_free.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using Trained = std::map<std::string, std::vector<double>>;

const optim::AdamW8BitOptions eight_bit = {.lr = 0.01, .min_8bit_size = 40};

ShardingOptions fitted(Strategy strategy) {
  ShardingOptions options = testing::toy_options(strategy);
  const optim::ShardNeeds needs = optim::needs_of(eight_bit);
  options.apart = needs.apart;
  options.block = needs.block;
  return options;
}

Trained trained_by(const optim::OptimizerFactory& make, const ShardingOptions& options,
                   bool evaluates = false) {
  const Device device = Device::cuda();
  testing::Collected collected;
  launch(
      2,
      [&](Context& context) {
        const testing::OneThread one_thread;
        manual_seed(5);
        testing::ToyTransformer net;
        ShardedModel model = fully_shard(net, context, options);
        const auto optimizer = make(model.parameters());
        for (int step = 0; step < 2; ++step) {
          const testing::ToyBatch batch = testing::toy_batch(context.rank() + 2 * step, 1);
          net.loss(batch.ids.to(device), batch.targets.to(device)).backward();
          (void)model.clip_grad_norm(0.1);
          optimizer->step();
          optimizer->zero_grad();
          if (!evaluates) continue;
          const NoGradGuard no_grad;
          optimizer->begin_evaluation();
          (void)net.loss(batch.ids.to(device), batch.targets.to(device)).item();
          optimizer->end_evaluation();
        }
        collected.add(model);
      },
      device);
  return collected.values();
}

void expect_equal_strategies(const optim::OptimizerFactory& make) {
  const testing::AccessChecking access_checking;
  const Trained plain = trained_by(make, fitted(Strategy::no_shard));
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_optimizer}) {
    EXPECT_EQ(trained_by(make, fitted(strategy), true), plain) << name_of(strategy);
  }
}

TEST(DeviceAdamWState, HasTheSameBitsUnderEveryStrategy) {
  expect_equal_strategies([](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::AdamW8Bit>(std::move(parameters), eight_bit);
  });
  expect_equal_strategies([](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions{.lr = 0.01, .state_dtype = bfloat16});
  });
}

TEST(DeviceScheduleFree, HasTheSameBitsUnderEveryStrategy) {
  expect_equal_strategies([](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::ScheduleFreeAdamW>(
        std::move(parameters), optim::ScheduleFreeAdamWOptions{.lr = 0.01, .weight_decay = 0.1});
  });
}

TEST(DeviceAdamWState, RefusesStateOnTheHost) {
  ShardingOptions options = fitted(Strategy::full_shard);
  options.offload.optimizer = Placement::host;
  launch(
      1,
      [&](Context& context) {
        testing::ToyTransformer net;
        ShardedModel model = fully_shard(net, context, options);
        EXPECT_THROW(optim::AdamW8Bit(model.parameters(), eight_bit), Error);
        EXPECT_THROW(optim::AdamW(model.parameters(), {.state_dtype = bfloat16}), Error);
        EXPECT_THROW(optim::ScheduleFreeAdamW(model.parameters(), {}), Error);
      },
      Device::cuda());
}

}  // namespace
}  // namespace tessera

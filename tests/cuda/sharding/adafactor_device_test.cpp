// Adafactor on ranks that share a GPU: the bits of NO_SHARD there, losses close to the CPU's, and
// no access that the order of the queues does not cover.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "cuda/device_under_test.h"
#include "engine/optim/adafactor.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using Values = std::map<std::string, std::vector<double>>;

Values trained_by_adafactor(int world, const ShardingOptions& options, Device device) {
  testing::Collected collected;
  launch(
      world,
      [&](Context& context) {
        const testing::OneThread one_thread;
        manual_seed(5);
        testing::ToyTransformer net;
        ShardedModel model = fully_shard(net, context, options);
        optim::Adafactor optimizer(
            model.parameters(), {.lr = 0.02, .weight_decay = 0.1, .decay = optim::decay_matrices});
        for (int step = 0; step < 2; ++step) {
          const testing::ToyBatch batch = testing::toy_batch(context.rank() + world * step, 1);
          net.loss(batch.ids.to(device), batch.targets.to(device)).backward();
          (void)model.clip_grad_norm(0.1);
          optimizer.step();
          optimizer.zero_grad();
        }
        collected.add(model);
      },
      device);
  return collected.values();
}

TEST(DeviceAdafactor, HasTheSameBitsUnderEveryStrategy) {
  const testing::AccessChecking access_checking;
  const auto run = [](const ShardingOptions& options) {
    return trained_by_adafactor(2, options, Device::cuda());
  };
  const Values plain = run(testing::toy_options(Strategy::no_shard));
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::shard_optimizer}) {
    EXPECT_EQ(run(testing::toy_options(strategy)), plain) << name_of(strategy);
  }
}

// The gradient of the keys' biases is 0 but for rounding, which Adafactor's normalisation enlarges:
// 1.4e-5 was measured there, and at most 4e-6 elsewhere.
TEST(DeviceAdafactor, IsCloseToTheCpu) {
  const testing::AccessChecking access_checking;
  const ShardingOptions options = testing::toy_options(Strategy::full_shard);
  const Values there = trained_by_adafactor(1, options, Device::cuda());
  for (const auto& [name, values] : trained_by_adafactor(1, options, Device::cpu())) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - there.at(name)[i], 2);
      norm += values[i] * values[i];
    }
    const double bound = name.ends_with("qkv.bias") ? 5e-5 : 1e-5;
    EXPECT_LE(std::sqrt(difference), bound * std::sqrt(norm)) << name;
  }
}

TEST(DeviceAdafactor, RefusesStateOnTheHost) {
  ShardingOptions options = testing::toy_options(Strategy::full_shard);
  options.offload.optimizer = Placement::host;
  launch(
      1,
      [&](Context& context) {
        testing::ToyTransformer net;
        ShardedModel model = fully_shard(net, context, options);
        EXPECT_THROW(optim::Adafactor(model.parameters(), {}), Error);
      },
      Device::cuda());
}

}  // namespace
}  // namespace tessera

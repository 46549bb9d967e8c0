// For ranks on several hosts, a plan has the communication memory of the run, to the byte.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "comm/nodes/nodes_world.h"
#include "comm/nodes/topology.h"
#include "comm/nodes/travelling.h"
#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::toy_batch;
using testing::ToyTransformer;

PlanOptions one_pass(const ShardingOptions& sharding, const ToyTransformer& net) {
  PlanOptions options;
  options.sharding = sharding;
  options.loss = [&net](Device device) {
    const MemoryScope data(MemoryKind::other);
    const auto batch = toy_batch(0, 2);
    const Tensor ids = batch.ids.to(device);
    const Tensor targets = batch.targets.to(device);
    const MemoryScope compute(MemoryKind::activations);
    return net.loss(ids, targets);
  };
  return options;
}

std::size_t planned(const testing::Hosts& hosts, const ShardingOptions& sharding) {
  const DeviceGuard deferred(Device::meta());
  ToyTransformer net;
  return plan(net, {.ranks = testing::ranks_of(hosts), .ranks_per_host = hosts.front()},
              one_pass(sharding, net))
      .memory.of(MemoryKind::communication);
}

std::vector<std::size_t> measured(const testing::Hosts& hosts, const ShardingOptions& sharding) {
  std::vector<std::size_t> bytes(static_cast<std::size_t>(testing::ranks_of(hosts)));
  testing::run_on_hosts(hosts, [&](const comm::World& world, const auto& communicator) {
    Context context(world, communicator);
    const testing::OneThread one_thread;
    manual_seed(5);
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, sharding);
    optim::AdamW optimizer(model.parameters(), {});
    const PlanOptions options = one_pass(sharding, net);
    for (int step = 0; step < 2; ++step) {
      options.loss(context.device()).backward();
      (void)model.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    bytes[static_cast<std::size_t>(context.rank())] =
        measure_memory(context).of(MemoryKind::communication);
  });
  return bytes;
}

// Encoded data have pieces on both sides.
TEST(HostsPlan, HasTheScratchOfWires) {
  std::size_t without = 0;
  for (const testing::Hosts& hosts : {testing::Hosts{2, 2}, testing::Hosts{1, 1, 1}}) {
    for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
      for (const WireFormat wire : {WireFormat::same, WireFormat::bf16, WireFormat::int8}) {
        ShardingOptions sharding = testing::toy_options(strategy);
        sharding.gather_wire = sharding.reduce_wire = wire;
        const std::size_t expected = planned(hosts, sharding);
        if (wire == WireFormat::same) without = expected;
        if (wire == WireFormat::int8) {
          EXPECT_GT(expected, without);
        }
        for (const std::size_t bytes : measured(hosts, sharding)) {
          EXPECT_EQ(bytes, expected)
              << testing::describe(sharding) << ", " << name_of(wire) << " on " << hosts.size();
        }
      }
    }
  }
}

TEST(HostsPlan, HasTheCommunicationMemoryOfTheRun) {
  for (const testing::Hosts& hosts : {testing::Hosts{2, 2}, testing::Hosts{1, 1, 1}}) {
    for (ShardingOptions sharding : testing::all_strategies(testing::ranks_of(hosts))) {
      for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
        sharding.param_dtype = dtype;
        const std::size_t expected = planned(hosts, sharding);
        for (const std::size_t bytes : measured(hosts, sharding)) {
          EXPECT_EQ(bytes, expected) << testing::describe(sharding) << " on " << hosts.size();
        }
      }
    }
  }
}

// Sums across copies on several hosts need other memory than sums on one host; it is allocated with
// the model, not in its first step.
TEST(HostsPlan, SumsAcrossCopiesHaveTheirMemoryFromTheStart) {
  for (const ShardingOptions& sharding : {testing::toy_options(Strategy::hybrid_shard, 2),
                                          testing::toy_options(Strategy::no_shard)}) {
    testing::run_on_hosts({2, 2}, [&](const comm::World& world, const auto& communicator) {
      Context context(world, communicator);
      const testing::OneThread one_thread;
      ToyTransformer net;
      const std::size_t before = communicator->held_bytes();
      ShardedModel model = fully_shard(net, context, sharding);
      const std::size_t made = communicator->held_bytes() - before;
      EXPECT_GE(made, comm::nodes_sums_bytes / 2) << testing::describe(sharding);
      EXPECT_GE(model.communication().buffer_bytes, comm::nodes_sums_bytes);
      one_pass(sharding, net).loss(context.device()).backward();
      EXPECT_LT(communicator->held_bytes() - before - made, comm::nodes_sums_bytes / 2);
    });
  }
}

}  // namespace
}  // namespace tessera

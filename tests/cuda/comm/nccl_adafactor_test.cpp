// Adafactor over NCCL, which adds the sums of rows and columns in an order of its own: it has the
// bits of ranks that share a GPU.
#include <map>
#include <string>
#include <vector>

#include "cuda/comm/nccl_ranks.h"
#include "engine/optim/adafactor.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

using Values = std::map<std::string, std::vector<double>>;

// Two steps of this rank.
void train_by_adafactor(Context& context, const ShardingOptions& strategy, Collected& collected) {
  const OneThread one_thread;
  manual_seed(5);
  ToyTransformer net;
  const optim::AdafactorOptions adafactor{.lr = 0.02};
  ShardingOptions options = strategy;
  options.apart = optim::needs_of(adafactor).apart;
  ShardedModel model = fully_shard(net, context, options);
  optim::Adafactor optimizer(model.parameters(), adafactor);
  for (int step = 0; step < 2; ++step) {
    const ToyBatch batch = toy_batch(context.rank() + context.world_size() * step, 1);
    net.loss(batch.ids.to(context.device()), batch.targets.to(context.device())).backward();
    (void)model.clip_grad_norm(0.1);
    optimizer.step();
    optimizer.zero_grad();
  }
  collected.add(model);
}

Values adafactor_over_nccl(int ranks, const ShardingOptions& options) {
  Collected collected;
  const auto rank = [&](const std::shared_ptr<comm::Communicator>& communicator) {
    const DeviceGuard on_its_gpu(communicator->device());
    Context context(world_of(communicator->rank(), ranks, 0), communicator);
    train_by_adafactor(context, options, collected);
  };
  expect_no_failure(run_nccl(ranks, rank, {.fixed_order = true}));
  return collected.values();
}

Values adafactor_on_a_shared_gpu(int ranks, const ShardingOptions& options) {
  Collected collected;
  launch(
      ranks, [&](Context& context) { train_by_adafactor(context, options, collected); },
      Device::cuda());
  return collected.values();
}

TEST(NcclAdafactor, HasTheBitsOfASharedGpu) {
  TESSERA_NEEDS_NCCL(3);
  const Values expected = adafactor_on_a_shared_gpu(3, toy_options(Strategy::full_shard));
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
    EXPECT_EQ(adafactor_over_nccl(3, toy_options(strategy)), expected) << name_of(strategy);
  }
}

TEST(NcclAdafactor, GroupsOfTwoHaveTheSameBits) {
  TESSERA_NEEDS_NCCL(4);
  EXPECT_EQ(adafactor_over_nccl(4, toy_options(Strategy::hybrid_shard, 2)),
            adafactor_on_a_shared_gpu(4, toy_options(Strategy::full_shard)));
}

}  // namespace
}  // namespace tessera::testing

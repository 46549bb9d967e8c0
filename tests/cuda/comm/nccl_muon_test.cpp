// Muon over NCCL, where parts of matrices are messages between GPUs: in the fixed order it has the
// bits of ranks that share a GPU.
#include <map>
#include <string>
#include <vector>

#include "cuda/comm/nccl_ranks.h"
#include "engine/optim/muon.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

using Values = std::map<std::string, std::vector<double>>;

// Two steps of this rank.
void train(Context& context, const ShardingOptions& strategy, Collected& collected) {
  const OneThread one_thread;
  manual_seed(5);
  ToyTransformer net;
  const optim::MuonOptions muon{.lr = 0.01, .matrices = optim::hidden_matrices(net)};
  ShardingOptions options = strategy;
  options.apart = optim::matrices_of(muon);
  ShardedModel model = fully_shard(net, context, options);
  optim::Muon optimizer(model.parameters(), muon);
  for (int step = 0; step < 2; ++step) {
    const ToyBatch batch = toy_batch(context.rank() + context.world_size() * step, 1);
    net.loss(batch.ids.to(context.device()), batch.targets.to(context.device())).backward();
    (void)model.clip_grad_norm(0.1);
    optimizer.step();
    optimizer.zero_grad();
  }
  collected.add(model);
}

Values over_nccl(int ranks, const ShardingOptions& options) {
  Collected collected;
  const auto rank = [&](const std::shared_ptr<comm::Communicator>& communicator) {
    const DeviceGuard on_its_gpu(communicator->device());
    Context context(world_of(communicator->rank(), ranks, 0), communicator);
    train(context, options, collected);
  };
  expect_no_failure(run_nccl(ranks, rank, {.fixed_order = true}));
  return collected.values();
}

Values on_a_shared_gpu(int ranks, const ShardingOptions& options) {
  Collected collected;
  launch(
      ranks, [&](Context& context) { train(context, options, collected); }, Device::cuda());
  return collected.values();
}

TEST(NcclMuon, HasTheBitsOfASharedGpu) {
  TESSERA_NEEDS_NCCL(3);
  const Values expected = on_a_shared_gpu(3, toy_options(Strategy::full_shard));
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
    EXPECT_EQ(over_nccl(3, toy_options(strategy)), expected) << name_of(strategy);
  }
}

TEST(NcclMuon, GroupsOfTwoHaveTheSameBits) {
  TESSERA_NEEDS_NCCL(4);
  EXPECT_EQ(over_nccl(4, toy_options(Strategy::hybrid_shard, 2)),
            on_a_shared_gpu(4, toy_options(Strategy::full_shard)));
}

}  // namespace
}  // namespace tessera::testing

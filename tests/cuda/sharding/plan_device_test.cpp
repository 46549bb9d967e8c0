// Compares plans for GPUs with ranks that share one and ranks over NCCL, and with the arena's
// figures.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "cuda/comm/nccl_ranks.h"
#include "engine/device/backend.h"
#include "engine/device/memory.h"
#include "engine/device/memory_step.h"
#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::toy_options;
using testing::ToyTransformer;

Tensor loss_on(const ToyTransformer& net, Device device) {
  const auto batch = testing::toy_batch(0, 2);
  return net.loss(batch.ids.to(device), batch.targets.to(device));
}

struct HeldOnGpu {
  RankMemory memory;
  std::size_t reserved = 0;  // by the compute thread's pool
};

// Two steps of this rank.
HeldOnGpu train_two_steps(const Context& context, const ShardingOptions& options) {
  manual_seed(5);
  std::optional<ToyTransformer> net;
  {
    const DeviceGuard deferred(Device::meta());
    net.emplace();
  }
  ShardedModel model = fully_shard(*net, context, options);
  optim::AdamW optimizer(model.parameters(), {});
  for (int step = 0; step < 2; ++step) {
    const MemoryStep memory(context.device());
    loss_on(*net, context.device()).backward();
    (void)model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  return {measure_memory(context), MemoryPool::current(context.device())->stats().reserved};
}

void expect_planned(const PlanWorld& world, const ShardingOptions& options,
                    const HeldOnGpu& measured) {
  const DeviceGuard deferred(Device::meta());
  ToyTransformer net;
  PlanOptions plan_options;
  plan_options.sharding = options;
  plan_options.loss = [&](Device device) { return loss_on(net, device); };
  const MemoryPlan planned = plan(net, world, plan_options);
  const std::string what = testing::describe(options);
  for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients,
                                MemoryKind::optimizer, MemoryKind::communication}) {
    EXPECT_EQ(planned.memory.of(kind), measured.memory.of(kind)) << what << ", " << name_of(kind);
  }
  EXPECT_EQ(planned.total(), measured.memory.total()) << what;
  EXPECT_EQ(planned.memory.placed, measured.memory.placed) << what;
  // The peak in the metrics contains all of it, and the memory of kernels in addition.
  const auto taken = backend_of(DeviceType::cuda).memory_source(Device::cuda())->taken();
  EXPECT_GE(taken.peak, measured.reserved + measured.memory.of(MemoryKind::communication)) << what;
  EXPECT_GE(taken.peak, taken.now);
}

TEST(PlanOnDevice, MatchesRanksThatShareAGpu) {
  for (ShardingOptions options :
       {toy_options(Strategy::no_shard), toy_options(Strategy::full_shard),
        toy_options(Strategy::hybrid_shard, 1)}) {
    options.param_dtype = bfloat16;
    HeldOnGpu measured;
    launch(
        2,
        [&](Context& context) {
          const HeldOnGpu mine = train_two_steps(context, options);
          if (context.is_main()) measured = mine;
        },
        Device::cuda());
    expect_planned({.ranks = 2, .device = DeviceType::cuda, .one_memory = true}, options, measured);
  }
}

// Measures `ranks` threads over NCCL.
HeldOnGpu held_over_nccl(int ranks, const ShardingOptions& options, bool fixed_order) {
  HeldOnGpu measured;
  const auto rank = [&](const std::shared_ptr<comm::Communicator>& communicator) {
    const DeviceGuard on_its_gpu(communicator->device());
    const Context context(testing::world_of(communicator->rank(), ranks, 0), communicator);
    const HeldOnGpu mine = train_two_steps(context, options);
    if (context.is_main()) measured = mine;
  };
  testing::expect_no_failure(testing::run_nccl(ranks, rank, {.fixed_order = fixed_order}));
  return measured;
}

// Each rank has its own copy, and scratch for NCCL's sums.
TEST(PlanOnDevice, MatchesRanksOverNccl) {
  TESSERA_NEEDS_NCCL(2);
  ShardingOptions wired[] = {toy_options(Strategy::no_shard), toy_options(Strategy::full_shard)};
  for (ShardingOptions& options : wired) {
    options.gather_wire = WireFormat::fp8_e5m2;
    options.reduce_wire = WireFormat::int8;
  }
  for (const bool fixed_order : {false, true}) {
    for (const ShardingOptions& options :
         {toy_options(Strategy::no_shard), toy_options(Strategy::full_shard), wired[0], wired[1]}) {
      expect_planned({.ranks = 2, .device = DeviceType::cuda, .fixed_reduction_order = fixed_order},
                     options, held_over_nccl(2, options, fixed_order));
    }
  }
}

// Sums across copies have scratch of their own, and so have gathers from ranks that keep a part.
TEST(PlanOnDevice, MatchesGroupsOverNccl) {
  TESSERA_NEEDS_NCCL(4);
  ShardingOptions hybrid = toy_options(Strategy::hybrid_shard, 2);
  hybrid.param_dtype = bfloat16;
  ShardingOptions parts = toy_options(Strategy::full_shard);
  parts.reshard_after_forward = 2;
  parts.gather_wire = WireFormat::int8;
  for (const ShardingOptions& options : {hybrid, parts}) {
    expect_planned({.ranks = 4, .device = DeviceType::cuda}, options,
                   held_over_nccl(4, options, false));
  }
}

}  // namespace
}  // namespace tessera

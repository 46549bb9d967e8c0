// Training over NCCL in the fixed order gives the bits of ranks that share a GPU, under every
// strategy; in NCCL's own order the losses stay close.
#include <cmath>

#include "cuda/comm/nccl_ranks.h"
#include "cuda/sharding/offload_testing.h"
#include "sharding/units/mixed_module.h"

namespace tessera::testing {
namespace {

constexpr Device shared_gpu = Device::cuda();

// Ranks as threads over NCCL, each with a context like those of init().
TrainingCase over_nccl(bool fixed_order) {
  TrainingCase what{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  what.launcher = [fixed_order](int ranks, const std::function<void(Context&)>& fn) {
    const auto rank = [&](const std::shared_ptr<comm::Communicator>& communicator) {
      const DeviceGuard on_its_gpu(communicator->device());
      Context context(world_of(communicator->rank(), ranks, 0), communicator);
      fn(context);
    };
    expect_no_failure(run_nccl(ranks, rank, {.fixed_order = fixed_order}));
  };
  return what;
}

TEST(NcclTraining, TheFixedOrderGivesTheBitsOfASharedGpu) {
  TESSERA_NEEDS_NCCL(2);
  const TrainingCase shared{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  const Trajectory expected = train_toy(2, toy_options(Strategy::full_shard), shared);
  for (const auto& options :
       {toy_options(Strategy::full_shard), toy_options(Strategy::no_shard),
        toy_options(Strategy::shard_grad_op), toy_options(Strategy::hybrid_shard, 1)}) {
    EXPECT_TRUE(same_bits(expected, train_toy(2, options, over_nccl(true)))) << describe(options);
  }
}

TEST(NcclTraining, GroupsOfTwoGiveTheSameBits) {
  TESSERA_NEEDS_NCCL(4);
  const TrainingCase shared{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  const Trajectory expected = train_toy(4, toy_options(Strategy::full_shard), shared);
  EXPECT_TRUE(
      same_bits(expected, train_toy(4, toy_options(Strategy::hybrid_shard, 2), over_nccl(true))));
}

// A reduction has two ranges and a gather four, or two after a step if the rest is frozen.
TEST(NcclTraining, UnitsOfSeveralSegmentsGiveTheSameBits) {
  TESSERA_NEEDS_NCCL(3);
  const auto train = [](const ShardingOptions& strategy, const TrainingCase& what) {
    ShardingOptions options = strategy;
    options.wrap = WrapPolicy::list({"mixed", "fixed"});
    return train_ranks(3, options, what,
                       [](double dropout) { return std::make_unique<MixedAndFrozen>(dropout); });
  };
  const TrainingCase shared{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  const Trajectory expected = train(toy_options(Strategy::no_shard), shared);
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_optimizer, Strategy::shard_grad_op}) {
    EXPECT_TRUE(same_bits(expected, train(toy_options(strategy), over_nccl(true))))
        << name_of(strategy);
  }
}

TEST(NcclTraining, StateOnTheHostGivesTheSameBits) {
  TESSERA_NEEDS_NCCL(2);
  const TrainingCase shared{
      .micro_batches = 2, .max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  const Trajectory expected = train_toy(2, toy_options(Strategy::full_shard), shared);
  TrainingCase what = over_nccl(true);
  what.micro_batches = 2;
  for (ShardingOptions options :
       {toy_options(Strategy::full_shard), toy_options(Strategy::no_shard),
        toy_options(Strategy::shard_grad_op), toy_options(Strategy::hybrid_shard, 1)}) {
    options.offload = placements().front();
    options.activation_checkpointing = ActivationCheckpointing::full;
    options.activation_offload = true;
    EXPECT_TRUE(same_bits(expected, train_toy(2, options, what))) << describe(options);
  }
}

// With encoded wires, ranks get the same bits as ranks that share a GPU, where nothing is sent,
// whatever order NCCL otherwise sums in.
TEST(NcclTraining, WiresGiveTheBitsOfASharedGpu) {
  TESSERA_NEEDS_NCCL(3);
  const auto wired = [](ShardingOptions options, WireFormat gather, WireFormat reduce) {
    options.gather_wire = gather;
    options.reduce_wire = reduce;
    return options;
  };
  const TrainingCase shared{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  const auto expect_equal = [&](Strategy strategy, WireFormat gather, WireFormat reduce) {
    const ShardingOptions options = wired(toy_options(strategy), gather, reduce);
    EXPECT_TRUE(same_bits(train_toy(3, options, shared), train_toy(3, options, over_nccl(false))))
        << name_of(strategy) << ", " << name_of(gather) << ", " << name_of(reduce);
  };
  expect_equal(Strategy::full_shard, WireFormat::int8, WireFormat::int8);
  expect_equal(Strategy::shard_optimizer, WireFormat::fp8_e4m3, WireFormat::bf16);
  expect_equal(Strategy::no_shard, WireFormat::same, WireFormat::int8);
}

TEST(NcclTraining, WiresInGroupsOfTwoGiveTheSameBits) {
  TESSERA_NEEDS_NCCL(4);
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.reduce_wire = WireFormat::int8;
  const TrainingCase shared{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  const Trajectory expected = train_toy(4, options, shared);
  options.strategy = Strategy::hybrid_shard;
  options.group_size = 2;
  EXPECT_TRUE(same_bits(expected, train_toy(4, options, over_nccl(true))));
}

// Rounding the kept rounded parameters of a group once more for sending does not change them.
TEST(NcclTraining, WiresOfKeptPartsGiveTheSameBits) {
  TESSERA_NEEDS_NCCL(4);
  for (const WireFormat wire : {WireFormat::int8, WireFormat::fp8_e5m2}) {
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.gather_wire = wire;
    const TrainingCase shared{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
    const Trajectory expected = train_toy(4, options, shared);
    options.reshard_after_forward = 2;
    EXPECT_TRUE(same_bits(expected, train_toy(4, options, over_nccl(true)))) << name_of(wire);
  }
}

TEST(NcclTraining, ItsOwnOrderStaysClose) {
  TESSERA_NEEDS_NCCL(3);
  const TrainingCase shared{.max_norm = 1e-2, .steps = 2, .batch = 1, .device = shared_gpu};
  const std::vector<double> expected =
      train_toy(3, toy_options(Strategy::full_shard), shared).mean_losses();
  const std::vector<double> got =
      train_toy(3, toy_options(Strategy::full_shard), over_nccl(false)).mean_losses();
  ASSERT_EQ(expected.size(), got.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-5 * std::abs(expected[i]));
  }
}

}  // namespace
}  // namespace tessera::testing

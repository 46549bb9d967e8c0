// reshard_after_forward: how often parameters are gathered and from which ranks, what a rank keeps
// of them, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "sharding/memory/layouts.h"
#include "sharding/plan/planned_toy.h"
#include "sharding/policy/reshard_policy.h"

namespace tessera {
namespace {

using testing::message_of;
using testing::on_ranks;
using testing::toy_options;
using testing::ToyTransformer;

ShardingOptions resharding(ReshardAfterForward reshard, Strategy strategy = Strategy::full_shard,
                           int group = 0) {
  ShardingOptions options = toy_options(strategy, group);
  options.reshard_after_forward = reshard;
  return options;
}

// Bytes of the units' flat buffers.
struct UnitBytes {
  std::uint64_t root = 0, others = 0, last = 0;
};

UnitBytes unit_bytes(const ShardingOptions& options, int shards) {
  ToyTransformer net;
  UnitBytes bytes;
  for (const auto& unit : testing::expected_units(net, options.wrap, options.param_dtype)) {
    const std::uint64_t own = unit.layout(shards).bytes();
    (unit.name.empty() ? bytes.root : bytes.others) += own;
    bytes.last = own;
  }
  return bytes;
}

// Bytes of a step's gathers that reach a rank, by phase and by the number of ranks that take part.
std::uint64_t gathered(const MemoryPlan& plan, std::string_view phase, int ranks) {
  std::uint64_t bytes = 0;
  for (const PlannedCollective& call : plan.collectives) {
    if (call.op == "all_gather" && call.phase == phase && call.ranks == ranks) bytes += call.bytes;
  }
  return bytes;
}

// The part of `bytes` that comes from other ranks if `ranks` gather.
std::uint64_t from_others(std::uint64_t bytes, int ranks) {
  return bytes / static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(ranks - 1);
}

// The backward gathers in small groups: only the forward's gathers cross them, with each parameter
// once, (W - N)
// W of it. The last unit of the forward stays, and is not gathered again.
TEST(Reshard, OnlyForwardsCrossGroups) {
  for (const auto& [world, ranks] : {std::pair{4, 2}, std::pair{8, 2}, std::pair{8, 4}}) {
    const ShardingOptions options = resharding(ranks);
    const MemoryPlan plan = testing::plan_toy(world, {.sharding = options}, DeviceType::cuda);
    const UnitBytes bytes = unit_bytes(options, world);
    EXPECT_EQ(gathered(plan, "forward", world), from_others(bytes.root + bytes.others, world));
    EXPECT_EQ(gathered(plan, "backward", world), 0u);
    EXPECT_EQ(gathered(plan, "backward", ranks), from_others(bytes.others - bytes.last, ranks));
  }
}

// A kept part consists of whole shards, whose blocks have been rounded: it is sent in as few bits.
TEST(Reshard, PartsAreSentInTheWireFormat) {
  for (const auto& [wire, of_32] :
       {std::pair{WireFormat::bf16, 64}, std::pair{WireFormat::int8, 33}}) {
    ShardingOptions options = resharding(2);
    options.gather_wire = wire;
    const MemoryPlan plan = testing::plan_toy(4, {.sharding = options}, DeviceType::cuda);
    const UnitBytes bytes = unit_bytes(options, 4);  // in fp32: 128 per block
    const std::uint64_t kept = bytes.others - bytes.last;
    EXPECT_EQ(gathered(plan, "backward", 2), from_others(kept, 2) / 128 * of_32);
  }
}

// Parts stay until the parameters change: in an accumulation only the first forward crosses groups.
TEST(Reshard, AnAccumulationCrossesGroupsOnce) {
  const ShardingOptions options = resharding(2);
  const MemoryPlan plan =
      testing::plan_toy(4, {.sharding = options, .micro_batches = 3}, DeviceType::cuda);
  const UnitBytes bytes = unit_bytes(options, 4);
  const std::uint64_t of_others = from_others(bytes.others, 4);
  EXPECT_EQ(gathered(plan, "forward", 4), of_others + 3 * from_others(bytes.root, 4));
  EXPECT_EQ(gathered(plan, "forward", 2), 2 * from_others(bytes.others, 2));
  EXPECT_EQ(gathered(plan, "backward", 2), 3 * from_others(bytes.others - bytes.last, 2));
}

// A rank keeps 1/N of each unit, and a second set of buffers to gather it in.
TEST(Reshard, KeepsAPartOfEachUnit) {
  const auto communication = [](const ShardingOptions& options) {
    return testing::plan_toy(8, {.sharding = options}, DeviceType::cuda)
        .memory.of(MemoryKind::communication);
  };
  const std::size_t plain = communication(toy_options(Strategy::full_shard));
  const UnitBytes bytes = unit_bytes(toy_options(Strategy::full_shard), 8);
  EXPECT_EQ(communication(resharding(2)), plain + bytes.others / 2 + 2 * bytes.last);
  EXPECT_EQ(communication(resharding(4)), plain + bytes.others / 4 + 2 * bytes.last);
  // `true` is FULL_SHARD's default, and `false` makes it SHARD_GRAD_OP.
  EXPECT_EQ(communication(resharding(true)), plain);
  EXPECT_EQ(communication(resharding(false)), communication(toy_options(Strategy::shard_grad_op)));
  EXPECT_EQ(communication(resharding(true, Strategy::shard_grad_op)), plain);
}

// As in FSDP2: 1 is false, all ranks are true.
TEST(Reshard, OneRankAndAllRanksAreFalseAndTrue) {
  const auto of = [](ReshardAfterForward asked) {
    return reshard_of(resharding(asked), "blocks.0", 8);
  };
  EXPECT_EQ(of(1).gathered, Gathered::until_backward);
  EXPECT_EQ(reshard_of(resharding(1), "blocks.0", 1).gathered, Gathered::until_backward);
  EXPECT_EQ(of(8).gathered, Gathered::per_pass);
  EXPECT_EQ(of(8).ranks, 0);
  EXPECT_EQ(of(4).gathered, Gathered::per_pass);
  EXPECT_EQ(of(4).ranks, 4);
}

TEST(Reshard, UnitsMayDiffer) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.reshard_after_forward_of = {{"blocks.0", false}, {"blocks.1", 2}};
  EXPECT_EQ(reshard_of(options, "blocks.0", 4).gathered, Gathered::until_backward);
  EXPECT_EQ(reshard_of(options, "blocks.1", 4).ranks, 2);
  EXPECT_EQ(reshard_of(options, "blocks.2", 4).gathered, Gathered::per_pass);
  EXPECT_EQ(reshard_of(options, "blocks.2", 4).ranks, 0);
  EXPECT_EQ(reshard_of(options, "", 4).gathered, Gathered::until_backward);  // the root stays
}

// Later micro-batches do not gather parameters again.
TEST(Reshard, UnitsKeptAfterTheBackwardAreGatheredOncePerStep) {
  ShardingOptions options = toy_options(Strategy::shard_grad_op);
  const UnitBytes bytes = unit_bytes(options, 4);
  const std::uint64_t once = from_others(bytes.root + bytes.others, 4);
  const auto moved = [&] {
    const MemoryPlan plan = testing::plan_toy(4, {.sharding = options, .micro_batches = 3});
    return gathered(plan, "forward", 4) + gathered(plan, "backward", 4);
  };
  EXPECT_EQ(moved(), 3 * once);
  options.reshard_after_backward = false;
  EXPECT_EQ(moved(), once);
}

std::string refusal(int world, const ShardingOptions& options) {
  return message_of<Error>(
      [&] { on_ranks(world, options, [](Context&, ToyTransformer&, ShardedModel&) {}); });
}

TEST(Reshard, RefusesInvalidSettings) {
  const auto expect = [](const std::string& got, const std::string& wanted) {
    EXPECT_NE(got.find(wanted), std::string::npos) << got;
  };
  expect(refusal(4, resharding(3)),
         "reshard_after_forward 3 does not divide the 4 ranks that hold one copy under FULL_SHARD");
  expect(refusal(4, resharding(0)), "reshard_after_forward 0 does not divide");
  expect(refusal(4, resharding(-2)), "reshard_after_forward -2 does not divide");
  expect(refusal(4, resharding(4, Strategy::hybrid_shard, 2)),
         "does not divide the 2 ranks that hold one copy under HYBRID_SHARD");
  expect(refusal(2, resharding(true, Strategy::no_shard)), "NO_SHARD gathers none");
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.reshard_after_forward_of = {{"blocks.7", 2}};
  expect(refusal(2, options), "of blocks.7: no unit has that name");
  options.reshard_after_forward_of = {{"", true}};
  expect(refusal(2, options), "the root always stays");
  options.reshard_after_forward_of.clear();
  options.reshard_after_backward = false;
  expect(refusal(2, options), "set reshard_after_forward: false as well");
  options.reshard_after_backward = true;
  options.limit_all_gathers = 0;
  expect(refusal(2, options), "limit_all_gathers is 0");
}

// Buffers that units use in turn: as many as may be gathered at a time.
TEST(LimitAllGathers, BoundsTheGatheredUnits) {
  const auto communication = [](int limit) {
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.limit_all_gathers = limit;
    return testing::plan_toy(8, {.sharding = options}, DeviceType::cuda)
        .memory.of(MemoryKind::communication);
  };
  const UnitBytes bytes = unit_bytes(toy_options(Strategy::full_shard), 8);
  EXPECT_EQ(communication(2), communication(1) + bytes.last);
  EXPECT_EQ(communication(3), communication(1) + 2 * bytes.last);
  EXPECT_EQ(communication(9), communication(3));  // there are only three units
}

// When the second block's forward begins, this number of blocks has been gathered.
TEST(LimitAllGathers, IsTheNumberOfPrefetchedUnits) {
  for (const int limit : {1, 2, 3}) {
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.limit_all_gathers = limit;
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
      for (int i = 0; i < 2; ++i) {
        testing::train_once(context, net);
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto batch = testing::toy_batch(context.rank(), 2);
      const std::uint64_t before = model.communication().collectives;
      const Tensor hidden = net.embed(batch.ids);  // the root and the first block
      EXPECT_EQ(model.communication().collectives - before,
                1u + static_cast<unsigned>(std::min(limit, 3)));
      sum(net.head(hidden)).backward();
    });
  }
}

}  // namespace
}  // namespace tessera

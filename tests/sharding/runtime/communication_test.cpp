// Bytes and collectives of a training step, by formula, for every strategy.
#include <gtest/gtest.h>

#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::toy_batch;
using testing::ToyTransformer;

// The statistics of one rank for one step, after `warm_up` steps.
CommunicationStatistics step_of(int world, const ShardingOptions& options, bool no_sync = false) {
  CommunicationStatistics result;
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(5);
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, options);
    optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
    CommunicationStatistics before;
    for (int step = 0; step < 3; ++step) {
      before = model.communication();
      const auto batch = toy_batch(step * world + context.rank(), 2);
      const auto pass = [&] { net.loss(batch.ids, batch.targets).backward(); };
      if (no_sync) {
        const auto scope = model.no_sync();
        pass();
      } else {
        pass();
      }
      if (!no_sync) {
        model.clip_grad_norm(1.0);
        optimizer.step();
      }
      optimizer.zero_grad();
    }
    if (!context.is_main()) return;
    result = model.communication();
    result.bytes -= before.bytes;
    result.collectives -= before.collectives;
  });
  return result;
}

struct Expected {
  std::uint64_t bytes = 0, collectives = 0;
};

// The number of gathers of a unit in a step: one per pass under FULL_SHARD, except that the last
// unit of the forward and the root stay gathered. Between passes of no_sync, units with memory of
// their own stay gathered.
int gathers_of(const StrategyRow& row, bool root, bool last, bool no_sync) {
  if (no_sync && (root || row.gathered != Gathered::per_pass)) return 0;
  if (row.gathered != Gathered::per_pass || root || last) return 1;
  return 2;
}

Expected formula(int world, const ShardingOptions& options, bool reduces) {
  const StrategyRow& row = row_of(options.strategy);
  const int shards = row.shards == ShardGroup::self    ? 1
                     : row.shards == ShardGroup::world ? world
                                                       : options.group_size;
  const auto others = static_cast<std::uint64_t>(shards - 1);
  const auto copies = static_cast<std::uint64_t>(world / shards);
  const std::size_t wire =
      size_of(options.reduce_dtype.value_or(options.param_dtype.value_or(float32)));
  ToyTransformer net;
  const auto units = testing::expected_units(net, options.wrap, options.param_dtype);
  Expected expected;
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitLayout layout = units[i].layout(shards);
    const std::uint64_t share = layout.share_bytes();
    const std::uint64_t elements = share / size_of(options.param_dtype.value_or(float32));
    if (shards > 1) {  // each gather receives the others' shards
      const int gathers = gathers_of(row, i == 0, i + 1 == units.size(), !reduces);
      expected.bytes += static_cast<std::uint64_t>(gathers) * others * share;
      expected.collectives += static_cast<std::uint64_t>(gathers);
    }
    if (!reduces) continue;
    if (shards > 1) {  // this rank's part of the others' gradients
      expected.bytes += others * elements * wire;
      ++expected.collectives;
    }
    if (copies > 1) {  // across groups the partial sums are fp32, as are the sums on their way back
      const std::uint64_t buffer = testing::round_up<std::uint64_t>(elements, 128);
      expected.bytes += buffer * ((shards > 1 ? 4 : wire) + 4) * (copies - 1) / copies;
      ++expected.collectives;
    }
  }
  return expected;
}

TEST(Communication, FollowsTheFormula) {
  for (const int world : {1, 2, 3, 4}) {
    for (ShardingOptions options : testing::all_strategies(world)) {
      for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
        options.param_dtype = dtype;
        const Expected expected = formula(world, options, true);
        const auto got = step_of(world, options);
        EXPECT_EQ(got.bytes, expected.bytes) << testing::describe(options) << ' ' << world;
        EXPECT_EQ(got.collectives, expected.collectives)
            << testing::describe(options) << ' ' << world;
      }
    }
  }
}

// A wider wire format for gradients is counted as such; that of parameters does not change.
TEST(Communication, WireDtypesCount) {
  ShardingOptions options = testing::toy_options(Strategy::full_shard);
  options.param_dtype = bfloat16;
  const auto narrow = step_of(2, options);
  options.reduce_dtype = float32;
  const auto wide = step_of(2, options);
  EXPECT_EQ(wide.bytes, formula(2, options, true).bytes);
  EXPECT_GT(wide.bytes, narrow.bytes);
  EXPECT_EQ(wide.collectives, narrow.collectives);
}

TEST(Communication, NoSyncReducesNothing) {
  for (const ShardingOptions& options : testing::all_strategies(4)) {
    // No optimizer has changed a value: gathered copies stay valid.
    const auto got = step_of(4, options, true);
    EXPECT_EQ(got.bytes, formula(4, options, false).bytes) << testing::describe(options);
    EXPECT_EQ(got.collectives, formula(4, options, false).collectives)
        << testing::describe(options);
  }
}

// Prefetching changes the time of gathers, never their number.
TEST(Communication, PrefetchMovesNoMoreBytes) {
  ShardingOptions options = testing::toy_options(Strategy::full_shard);
  const auto expected = formula(3, options, true);
  for (const auto backward :
       {BackwardPrefetch::none, BackwardPrefetch::pre, BackwardPrefetch::post}) {
    for (const bool forward : {false, true}) {
      options.backward_prefetch = backward;
      options.forward_prefetch = forward;
      EXPECT_EQ(step_of(3, options).bytes, expected.bytes);
    }
  }
}

}  // namespace
}  // namespace tessera

// The memory of a rank, byte for byte, and that a step allocates nothing once training has begun.
#include <gtest/gtest.h>

#include "engine/device/memory.h"
#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::expected_units;
using testing::ExpectedUnit;
using testing::round_up;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;

struct Held {
  HeldBytes bytes;
  CommunicationStatistics before, after;  // of two steps that must be equal
  MemoryStats pool_before, pool_after;
};

// Trains, and returns the memory of each rank at the end.
std::vector<Held> memory_of_steps(int world, const ShardingOptions& options, int steps,
                                  bool no_sync = false) {
  std::vector<Held> held(static_cast<std::size_t>(world));
  launch(world, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(5);
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, options);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
    Held& mine = held[static_cast<std::size_t>(context.rank())];
    for (int step = 0; step < steps; ++step) {
      const auto batch = toy_batch(step * world + context.rank(), 2);
      if (no_sync) {
        const auto scope = model.no_sync();
        net.loss(batch.ids, batch.targets).backward();
      }
      net.loss(batch.ids, batch.targets).backward();
      model.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
      // The second forward is the first one that knows the order of the units.
      if (step == 1) {
        mine.before = model.communication();
        mine.pool_before = MemoryPool::current()->stats();
      }
      mine.after = model.communication();
      mine.pool_after = MemoryPool::current()->stats();
    }
    mine.bytes = model.held_bytes();
    mine.bytes.optimizer = optimizer.state_bytes();
  });
  return held;
}

std::vector<ExpectedUnit> units_of(std::optional<DType> param_dtype = {}) {
  ToyTransformer net;
  return expected_units(net, toy_options(Strategy::full_shard).wrap, param_dtype);
}

HeldBytes sum(const std::vector<Held>& ranks) {
  HeldBytes total;
  for (const Held& rank : ranks) {
    total.parameters += rank.bytes.parameters;
    total.gradients += rank.bytes.gradients;
    total.optimizer += rank.bytes.optimizer;
  }
  return total;
}

// FULL_SHARD on four ranks: a quarter of NO_SHARD's memory, plus padding that depends only on the
// sizes.
TEST(ShardingMemory, FullShardIsAQuarterPlusPadding) {
  constexpr int world = 4;
  const auto whole = memory_of_steps(world, toy_options(Strategy::no_shard), 2);
  const auto sharded = memory_of_steps(world, toy_options(Strategy::full_shard), 2);

  std::size_t parameter_padding = 0;  // of all ranks together
  std::size_t gradient_padding = 0;
  for (const ExpectedUnit& unit : units_of()) {
    const std::size_t bytes = unit.layout(1).bytes();
    const std::size_t padded = round_up(bytes, std::size_t{256} * world);
    EXPECT_EQ(unit.layout(world).bytes(), padded) << unit.name;
    parameter_padding += padded - bytes;
    // On each rank gradients begin at multiples of 128 elements, 512 bytes.
    gradient_padding +=
        world * round_up<std::size_t>(padded / world, 512) - round_up<std::size_t>(bytes, 512);
  }
  EXPECT_GT(parameter_padding, 0u);  // the test needs sizes with padding
  for (const Held& rank : sharded) {
    EXPECT_EQ(world * rank.bytes.parameters, whole[0].bytes.parameters + parameter_padding);
    EXPECT_EQ(world * rank.bytes.gradients, whole[0].bytes.gradients + gradient_padding);
  }
  // Moments have no padding at their ends: the ranks together hold at most one copy.
  EXPECT_LE(sum(sharded).optimizer, whole[0].bytes.optimizer);
}

// All numbers of every rank, computed only from the layout.
TEST(ShardingMemory, FollowsFromTheLayout) {
  for (const std::optional<DType> param_dtype : {std::optional<DType>{}, {bfloat16}}) {
    for (const int world : {1, 3, 4}) {
      for (ShardingOptions options : all_strategies(world)) {
        options.param_dtype = param_dtype;
        const StrategyRow& row = row_of(options.strategy);
        const int shards = row.shards == ShardGroup::self    ? 1
                           : row.shards == ShardGroup::world ? world
                                                             : options.group_size;
        const auto held = memory_of_steps(world, options, 1);
        for (int rank = 0; rank < world; ++rank) {
          HeldBytes expected;
          for (const ExpectedUnit& unit : units_of(param_dtype)) {
            const UnitLayout layout = unit.layout(shards);
            ASSERT_EQ(layout.segments().size(), 1u);
            const std::size_t elements =
                layout.share_bytes() / size_of(param_dtype.value_or(float32));
            expected.parameters += 4 * elements;  // fp32 masters
            expected.gradients += 4 * round_up<std::size_t>(elements, 128);
            expected.optimizer += 2 * 4 * testing::extent_of(layout, rank % shards);
          }
          const HeldBytes& got = held[static_cast<std::size_t>(rank)].bytes;
          EXPECT_EQ(got.parameters, expected.parameters) << testing::describe(options);
          EXPECT_EQ(got.gradients, expected.gradients) << testing::describe(options);
          EXPECT_EQ(got.optimizer, expected.optimizer) << testing::describe(options);
        }
      }
    }
  }
}

TEST(ShardingMemory, NothingIsAllocatedAfterTheFirstSteps) {
  for (const bool no_sync : {false, true}) {
    for (ShardingOptions options : all_strategies(4)) {
      options.param_dtype = bfloat16;
      for (const Held& rank : memory_of_steps(4, options, 4, no_sync)) {
        const std::string what = testing::describe(options);
        EXPECT_EQ(rank.pool_after.system_allocations, rank.pool_before.system_allocations) << what;
        EXPECT_EQ(rank.pool_after.in_use, rank.pool_before.in_use) << what;
        EXPECT_EQ(rank.after.buffers, rank.before.buffers) << what;
        EXPECT_EQ(rank.after.buffer_bytes, rank.before.buffer_bytes) << what;
      }
    }
  }
}

// For any number of layers: two parameter buffers and two gradient buffers of a layer's size, and
// the root's own.
TEST(ShardingMemory, FullShardBuffersAreAFixedSet) {
  const auto held = memory_of_steps(2, toy_options(Strategy::full_shard), 4);
  const auto units = units_of();
  const UnitLayout root = units[0].layout(2);
  const UnitLayout block = units[1].layout(2);
  const auto gradient = [](const UnitLayout& layout) {
    return static_cast<std::size_t>(layout.gradient_elements()) * 4;
  };
  for (const Held& rank : held) {
    EXPECT_EQ(rank.after.buffers, 2u + 2 + 2);
    EXPECT_EQ(rank.after.buffer_bytes,
              2 * block.bytes() + 2 * gradient(block) + root.bytes() + gradient(root));
  }
}

// Units of very different sizes: the scope takes the bytes of each unit, not those of the largest
// for each.
TEST(ShardingMemory, UnshardedScopeTakesEachUnitsOwnBytes) {
  class Uneven : public nn::Module {
   public:
    Uneven() {
      for (int i = 0; i < 6; ++i) {
        const std::int64_t out = i == 2 ? 500 : 8;
        register_module("l" + std::to_string(i), nn::Linear(16, out));
      }
    }
  };
  launch(2, [](Context& context) {
    Uneven net;
    ShardedModel model =
        fully_shard(net, context, {.wrap = WrapPolicy::list({"l0", "l1", "l2", "l3", "l4", "l5"})});
    std::size_t whole = 0;
    for (const auto& unit :
         expected_units(net, WrapPolicy::list({"l0", "l1", "l2", "l3", "l4", "l5"}))) {
      if (!unit.specs.empty()) whole += unit.layout(2).bytes();
    }
    const std::uint64_t before = model.communication().buffer_bytes;
    for (int i = 0; i < 2; ++i) {
      {
        const auto scope = model.unsharded();
        EXPECT_LE(model.communication().buffer_bytes, before + whole);
        EXPECT_GT(model.communication().buffer_bytes, before);
        const auto nested = model.unsharded();
      }
      EXPECT_EQ(model.communication().buffer_bytes, before);
    }
  });
}

// Programs that evaluate often may keep the memory.
TEST(ShardingMemory, UnshardedScopeMayKeepItsMemory) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.keep_unsharded_memory = true;
  testing::on_ranks(2, options, [](Context& context, ToyTransformer& net, ShardedModel& model) {
    const auto step = [&] { testing::train_once(context, net); };
    step();
    { const auto whole = model.unsharded(); }
    const auto before = model.communication();
    for (int i = 0; i < 3; ++i) {
      step();
      const auto whole = model.unsharded();
    }
    EXPECT_EQ(model.communication().allocations, before.allocations);
    EXPECT_EQ(model.communication().buffer_bytes, before.buffer_bytes);
  });
}

// A scope that gathers all units frees the memory.
TEST(ShardingMemory, UnshardedScopeLeavesNoBuffers) {
  launch(2, [](Context& context) {
    ToyTransformer net;
    ShardedModel model = fully_shard(net, context, toy_options(Strategy::full_shard));
    const auto step = [&] {
      const auto batch = toy_batch(context.rank(), 2);
      net.loss(batch.ids, batch.targets).backward();
    };
    step();
    step();
    const auto before = model.communication().buffers;
    {
      const auto whole = model.unsharded();
      EXPECT_GT(model.communication().buffers, before);
    }
    step();
    EXPECT_EQ(model.communication().buffers, before);
  });
}

}  // namespace
}  // namespace tessera

// Compares the table of buffers with the memory of a rank, byte for byte, from construction on.
#include "sharding/memory/buffer_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"
#include "support/processor_time.h"

namespace tessera {
namespace {

using testing::expected_units;
using testing::toy_options;
using testing::ToyTransformer;

// The expected table, computed only from the module.
class ExpectedPlan {
 public:
  ExpectedPlan(const ShardingOptions& options, int world) : options_(options), world_(world) {
    ToyTransformer net;
    for (const auto& unit : expected_units(net, options.wrap, options.param_dtype)) {
      names_.push_back(unit.name);
      layouts_.push_back(unit.layout(shards_of(options, world)));
    }
  }
  [[nodiscard]] BufferPlan of_a_rank(bool no_sync = false) const {
    std::vector<PlannedUnit> units;
    for (std::size_t i = 0; i < names_.size(); ++i) units.push_back({names_[i], &layouts_[i]});
    return buffer_plan(units, options_, {.size = world_}, no_sync);
  }

 private:
  ShardingOptions options_;
  int world_;
  std::vector<std::string> names_;
  std::vector<UnitLayout> layouts_;
};

void expect_held(const BufferPlan& plan, const ShardedModel& model, const std::string& what) {
  const HeldBytes held = model.held_bytes();
  const CommunicationStatistics communication = model.communication();
  EXPECT_EQ(held.parameters, plan.bytes(MemoryKind::parameters)) << what;
  EXPECT_EQ(held.gradients, plan.bytes(MemoryKind::gradients)) << what;
  EXPECT_EQ(communication.buffer_bytes, plan.bytes(MemoryKind::communication)) << what;
  std::uint64_t buffers = 0;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.kind == MemoryKind::communication) buffers += static_cast<unsigned>(buffer.count);
  }
  EXPECT_EQ(communication.buffers, buffers) << what;
}

void expect_plan_is_held(int world, const ShardingOptions& options) {
  const ExpectedPlan expected(options, world);
  const std::string what = testing::describe(options) + " on " + std::to_string(world) + " ranks";
  testing::on_ranks(world, options,
                    [&](Context& context, ToyTransformer& net, ShardedModel& model) {
                      expect_held(expected.of_a_rank(), model, what + ", made");
                      optim::Sgd optimizer(model.parameters(), {.lr = 1e-2});
                      const auto step = [&] {
                        testing::train_once(context, net);
                        optimizer.step();
                        optimizer.zero_grad();
                      };
                      const std::uint64_t allocations = model.communication().allocations;
                      for (int i = 0; i < 3; ++i) step();
                      expect_held(expected.of_a_rank(), model, what + ", trained");
                      EXPECT_EQ(model.communication().allocations, allocations) << what;
                      for (int i = 0; i < 2; ++i) {
                        {
                          const auto scope = model.no_sync();
                          testing::train_once(context, net);
                        }
                        step();
                      }
                      expect_held(expected.of_a_rank(true), model, what + ", no_sync");
                    });
}

TEST(BufferPlan, MatchesEveryStrategy) {
  for (const int world : {1, 2, 4}) {
    for (ShardingOptions options : testing::all_strategies(world)) {
      for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
        options.param_dtype = dtype;
        expect_plan_is_held(world, options);
      }
    }
  }
}

TEST(BufferPlan, MatchesNestedUnitsAndOtherPrefetches) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  for (const auto backward :
       {BackwardPrefetch::none, BackwardPrefetch::pre, BackwardPrefetch::post}) {
    options.backward_prefetch = backward;
    options.forward_prefetch = backward == BackwardPrefetch::pre;
    for (const auto& wrap :
         {WrapPolicy::transformer({"ToyBlock"}), WrapPolicy::none(), WrapPolicy::list({"blocks.1"}),
          WrapPolicy::list({"blocks.0", "blocks.1", "blocks.1.attention", "blocks.1.in"}),
          WrapPolicy::list({"blocks.0", "blocks.2.attention", "blocks.2.attention.qkv"})}) {
      options.wrap = wrap;
      expect_plan_is_held(2, options);
    }
  }
}

std::vector<PlannedBuffer> pools(const BufferPlan& plan) {
  std::vector<PlannedBuffer> found;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.unit < 0) found.push_back(buffer);
  }
  return found;
}

// Two buffers of the largest unit for any number of units; one more for each unit that contains
// another.
TEST(BufferPlan, PoolsAreSizedByTheLargestUnit) {
  const auto layout = [](std::int64_t elements) {
    return UnitLayout({{.name = "w", .shape = {elements}}}, 4);
  };
  const UnitLayout root = layout(1000), small = layout(256), large = layout(5000);
  const std::vector<PlannedUnit> flat{{"", &root}, {"a", &small}, {"ab", &large}, {"c", &small}};
  const auto found = pools(buffer_plan(flat, {}, {.size = 4}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].use, BufferUse::gathered_pool);
  EXPECT_EQ(found[0].bytes, large.bytes());
  EXPECT_EQ(found[0].count, 2);
  EXPECT_TRUE(found[0].one_copy);
  EXPECT_EQ(found[1].use, BufferUse::gradient_pool);
  EXPECT_EQ(found[1].bytes, static_cast<std::size_t>(large.gradient_elements()) * 4);
  EXPECT_EQ(found[1].count, 2);
  const std::vector<PlannedUnit> nested{
      {"", &root}, {"a", &small}, {"a.b", &large}, {"a.b.c", &small}};
  EXPECT_EQ(pools(buffer_plan(nested, {}, {.size = 4}))[0].count, 3);  // there are only three units
  const std::vector<PlannedUnit> deep{
      {"", &root}, {"a", &small}, {"a.b", &large}, {"c", &small}, {"d", &small}};
  EXPECT_EQ(pools(buffer_plan(deep, {}, {.size = 4}))[1].count, 3);
}

// A rank of a world that is too large to start here.
TEST(BufferPlan, OfTensOfThousandsOfRanks) {
  constexpr int world = 65536;
  std::vector<UnitLayout> layouts;
  layouts.emplace_back(std::vector<ParameterSpec>{{.name = "w", .shape = {128256, 16384}}}, world);
  std::vector<PlannedUnit> units{{"", nullptr}};
  for (int i = 0; i < 126; ++i) {
    layouts.emplace_back(std::vector<ParameterSpec>{{.name = "w", .shape = {53248, 3 * 16384}}},
                         world);
    units.push_back({"layers." + std::to_string(i), nullptr});
  }
  for (std::size_t i = 0; i < units.size(); ++i) units[i].layout = &layouts[i];
  const BufferPlan plan = buffer_plan(units, {}, {.size = world, .nccl = true});
  std::size_t shares = 0;
  for (const UnitLayout& layout : layouts) shares += layout.share_bytes();
  EXPECT_EQ(plan.bytes(MemoryKind::parameters), shares);
  EXPECT_GT(plan.bytes(MemoryKind::communication), 4 * layouts.back().bytes());
}

double seconds_to_plan(int count) {
  const UnitLayout layout({{.name = "weight", .shape = {8, 8}}}, 2);
  std::vector<PlannedUnit> units;
  for (int i = 0; i < count; ++i) units.push_back({"blocks." + std::to_string(i), &layout});
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const double before = testing::own_processor_seconds();
    EXPECT_FALSE(buffer_plan(units, {}, {.size = 2}, false).buffers.empty());
    best = std::min(best, testing::own_processor_seconds() - before);
  }
  return best;
}

// 16 times the units take 16 times as long; a comparison of all units with all would take 256 times
// as long.
TEST(BufferPlan, TakesTimeInProportionToTheNumberOfUnits) {
  EXPECT_LT(seconds_to_plan(32'000), 64 * seconds_to_plan(2'000));
}

}  // namespace
}  // namespace tessera

// Plans of AdamW with 8-bit and with bf16 moments have the bytes of the ranks.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/optim/adamw_8bit.h"
#include "sharding/plan/planned_toy.h"

namespace tessera {
namespace {

using testing::PlannedCase;

const optim::AdamW8BitOptions small_ones_too = {.min_8bit_size = 40};

PlannedCase eight_bit_case(ShardingOptions sharding) {
  const optim::ShardNeeds needs = optim::needs_of(small_ones_too);
  sharding.apart = needs.apart;
  sharding.block = needs.block;
  return {.sharding = sharding, .optimizer = [](std::vector<nn::NamedParameter> parameters) {
            return std::make_unique<optim::AdamW8Bit>(std::move(parameters), small_ones_too);
          }};
}

PlannedCase rounded_case(const ShardingOptions& sharding) {
  return {.sharding = sharding, .optimizer = [](std::vector<nn::NamedParameter> parameters) {
            return std::make_unique<optim::AdamW>(std::move(parameters),
                                                  optim::AdamWOptions{.state_dtype = bfloat16});
          }};
}

TEST(AdamWStatePlan, MatchesTheRanks) {
  for (const int world : {1, 2, 3}) {
    for (const ShardingOptions& sharding : testing::all_strategies(world)) {
      for (const PlannedCase& what : {eight_bit_case(sharding), rounded_case(sharding)}) {
        const std::string text = testing::describe(sharding) + " on " + std::to_string(world);
        const MemoryPlan planned = testing::plan_toy(world, what);
        const RankMemory measured = testing::run_toy(world, what).front().memory;
        for (const MemoryKind kind : testing::exact_kinds)
          EXPECT_EQ(planned.memory.of(kind), measured.of(kind)) << text << name_of(kind);
        EXPECT_EQ(planned.total(), measured.total()) << text;
      }
    }
  }
}

TEST(AdamWStatePlan, HasAPartOfTheMoments) {
  const ShardingOptions sharding = testing::toy_options(Strategy::no_shard);
  const auto moments = [](const PlannedCase& what) {
    return static_cast<double>(testing::plan_toy(1, what).memory.of(MemoryKind::optimizer));
  };
  const double whole = moments({.sharding = sharding});
  EXPECT_NEAR(moments(rounded_case(sharding)) / whole, 0.5, 0.02);
  EXPECT_LT(moments(eight_bit_case(sharding)) / whole,
            0.6);  // most of the toy is small, or padding
}

}  // namespace
}  // namespace tessera

// Plans of schedule-free AdamW have the bytes of the ranks: three state tensors.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/optim/schedule_free.h"
#include "sharding/plan/planned_toy.h"

namespace tessera {
namespace {

using testing::PlannedCase;

TEST(ScheduleFreePlan, MatchesTheRanks) {
  for (const int world : {1, 2, 3}) {
    for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
      const ShardingOptions sharding = testing::toy_options(strategy);
      const PlannedCase what{.sharding = sharding,
                             .optimizer = [](std::vector<nn::NamedParameter> parameters) {
                               return std::make_unique<optim::ScheduleFreeAdamW>(
                                   std::move(parameters), optim::ScheduleFreeAdamWOptions{});
                             }};
      const std::string text = testing::describe(sharding) + " on " + std::to_string(world);
      const MemoryPlan planned = testing::plan_toy(world, what);
      const RankMemory measured = testing::run_toy(world, what).front().memory;
      for (const MemoryKind kind : testing::exact_kinds)
        EXPECT_EQ(planned.memory.of(kind), measured.of(kind)) << text << name_of(kind);
      EXPECT_EQ(planned.total(), measured.total()) << text;
      // AdamW has two.
      const MemoryPlan adamw = testing::plan_toy(world, {.sharding = sharding});
      EXPECT_EQ(2 * planned.memory.of(MemoryKind::optimizer),
                3 * adamw.memory.of(MemoryKind::optimizer))
          << text;
    }
  }
}

}  // namespace
}  // namespace tessera

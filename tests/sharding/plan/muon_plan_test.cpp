// A plan of Muon's steps has the bytes of the ranks: moments, working memory, and what ranks send.
#include <gtest/gtest.h>

#include <memory>

#include "engine/optim/muon.h"
#include "sharding/plan/planned_toy.h"

namespace tessera {
namespace {

using testing::PlannedCase;

std::unique_ptr<optim::Optimizer> make_muon(std::vector<nn::NamedParameter> parameters) {
  return std::make_unique<optim::Muon>(std::move(parameters), optim::MuonOptions{});
}

// The planned rank is the first one. The others hold no more: they have equal parts of the matrices
// and of the rest, and the same working memory.
TEST(MuonPlan, MatchesTheRanks) {
  for (const int world : {1, 2, 3, 4}) {
    for (ShardingOptions sharding : testing::all_strategies(world)) {
      sharding.apart = optim::matrices_of({});
      const PlannedCase what{.sharding = sharding, .optimizer = make_muon};
      const std::string text = testing::describe(sharding) + " on " + std::to_string(world);
      const MemoryPlan planned = testing::plan_toy(world, what);
      const std::vector<testing::Measured> ranks = testing::run_toy(world, what);
      EXPECT_EQ(planned.moved_bytes(), ranks.front().moved) << text;
      const RankMemory& measured = ranks.front().memory;
      for (const MemoryKind kind : testing::exact_kinds) {
        EXPECT_EQ(planned.memory.of(kind), measured.of(kind)) << text << name_of(kind);
        for (const testing::Measured& other : ranks)
          EXPECT_LE(other.memory.of(kind), planned.memory.of(kind)) << text << name_of(kind);
      }
      EXPECT_EQ(planned.total(), measured.total()) << text;
      EXPECT_EQ(planned.memory.placed, measured.placed) << text;
      EXPECT_EQ(planned.memory.step_placed, measured.step_placed) << text;
    }
  }
}

// Muon's moments are half of AdamW's for matrices; what it sends is sent once each way.
TEST(MuonPlan, HasHalfOfTheMomentsOfMatrices) {
  PlannedCase what{.sharding = testing::toy_options(Strategy::full_shard)};
  const MemoryPlan adamw = testing::plan_toy(4, what);
  what.optimizer = make_muon;
  const MemoryPlan muon = testing::plan_toy(4, what);
  const auto of_adamw = static_cast<double>(adamw.memory.of(MemoryKind::optimizer));
  const auto of_muon = static_cast<double>(muon.memory.of(MemoryKind::optimizer));
  EXPECT_NEAR(of_muon / of_adamw, 0.5, 0.1);
  EXPECT_GT(muon.moved_bytes(), adamw.moved_bytes());
}

}  // namespace
}  // namespace tessera

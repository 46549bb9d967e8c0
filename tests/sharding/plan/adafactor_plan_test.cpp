// A plan of Adafactor's steps has the bytes of the ranks: moments, working memory, and what ranks
// send.
#include <gtest/gtest.h>

#include <memory>

#include "comm/scratch.h"
#include "engine/optim/adafactor.h"
#include "kernels/reduction.h"
#include "sharding/plan/planned_toy.h"

namespace tessera {
namespace {

using testing::PlannedCase;

std::unique_ptr<optim::Optimizer> make_adafactor(std::vector<nn::NamedParameter> parameters) {
  return std::make_unique<optim::Adafactor>(std::move(parameters), optim::AdafactorOptions{});
}

TEST(AdafactorPlan, MatchesTheRanks) {
  for (const int world : {1, 2, 3, 4}) {
    for (ShardingOptions sharding : testing::all_strategies(world)) {
      sharding.apart = optim::is_factored;
      const PlannedCase what{.sharding = sharding, .optimizer = make_adafactor};
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

// The moments of a matrix are its rows and columns. Ranks add the limbs of exact sums, and two sums
// for each row and column.
TEST(AdafactorPlan, HasTheMomentsAndSumsOfRowsAndColumns) {
  PlannedCase what{.sharding = testing::toy_options(Strategy::full_shard)};
  const MemoryPlan adamw = testing::plan_toy(2, what);
  what.optimizer = make_adafactor;
  const MemoryPlan adafactor = testing::plan_toy(2, what);
  EXPECT_LT(adafactor.memory.of(MemoryKind::optimizer), adamw.memory.of(MemoryKind::optimizer) / 2);
  std::int64_t parameters = 0, factored = 0, sums = 0;
  const testing::ToyTransformer net;
  for (const nn::NamedParameter& one : net.named_parameters()) {
    ++parameters;
    if (!optim::is_factored(one)) continue;
    ++factored;
    const int dimensions = one.shape.dimensions();
    const std::int64_t rows = one.shape[dimensions - 2], columns = one.shape[dimensions - 1];
    sums += 2 * one.shape.elements() / (rows * columns) * (rows + columns);
  }
  std::uint64_t expected = 0;
  const std::int64_t limbs = kernels::ExactSum::limbs;
  for (const std::int64_t count : {(parameters + factored) * limbs, sums, parameters * limbs})
    expected += comm::all_reduced_bytes(count, 2, float64, WireFormat::same);
  EXPECT_EQ(adafactor.moved_bytes() - adamw.moved_bytes(), expected);
}

}  // namespace
}  // namespace tessera

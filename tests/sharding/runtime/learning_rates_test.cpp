// Ranks whose learning rates differ get an error at their next collective, under every strategy.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

// The error of two ranks that train with these rates, three steps each.
std::string failure_with(const ShardingOptions& options, double first, double second) {
  try {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.5});
      for (int step = 0; step < 3; ++step) {
        train_once(context, net);
        // The first step has the same rate everywhere.
        if (step > 0) optimizer.set_learning_rate(context.rank() == 0 ? first : second);
        optimizer.step();
        optimizer.zero_grad();
      }
      context.barrier();
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::rank_failed);
    return error.what();
  }
  return "(no error)";
}

TEST(LearningRates, OfRanksThatDifferAreNamed) {
  for (const ShardingOptions& options : all_strategies(2)) {
    const std::string told = failure_with(options, 0.25, 0.125);
    EXPECT_NE(told.find("learning rate 0.25"), std::string::npos) << describe(options) << told;
    EXPECT_NE(told.find("learning rate 0.125"), std::string::npos) << describe(options) << told;
  }
}

TEST(LearningRates, ThatChangeOnAllRanksAreNoDifference) {
  for (const ShardingOptions& options : all_strategies(2)) {
    EXPECT_EQ(failure_with(options, 0.25, 0.25), "(no error)") << describe(options);
    EXPECT_EQ(failure_with(options, 0, 0), "(no error)") << describe(options);
  }
}

}  // namespace
}  // namespace tessera::testing

// At one world size all strategies print the same losses and gradient norms, digit by digit; and
// ranks agree with one process that takes their batches together.
#include "tests/cli/strategies_testing.h"

namespace tessera::cli {
namespace {

using testing::expect_close;
using testing::expect_equal_bits;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

TEST(Strategies, TwoRanksPrintTheSameBits) {
  expect_equal_bits(2);
}

TEST(Strategies, ThreeRanksPrintTheSameBits) {
  expect_equal_bits(3);
}

TEST(Strategies, RanksAgreeWithOneRankOfTheirBatches) {
  const TrainingFolder folder;
  const Settings common = folder.small() + Settings{{"train.steps", "50"}};
  const auto settings = [&](int batch, const std::string& file) {
    return common +
           Settings{{"data.batch_size", std::to_string(batch)}, {"log.jsonl", folder.path(file)}};
  };
  train(1, settings(6, "one"));
  train(2, settings(3, "two"));
  expect_close(folder.path("two"), folder.path("one"), 1e-4);
}

}  // namespace
}  // namespace tessera::cli

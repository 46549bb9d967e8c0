// At one world size all strategies print the same losses and gradient norms, digit by digit; and
// ranks agree with one process that trains with all their batches.
#include "tests/training/strategies_testing.h"

namespace tessera::training {
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

// Under every strategy, with dropout, accumulation and bf16; and the number of moved bytes is the
// same.
TEST(Strategies, RecomputationPrintsTheSameBits) {
  const TrainingFolder folder;
  const std::string jsonl = folder.path("metrics.jsonl");
  const auto run = [&](const Settings& more) {
    std::filesystem::remove(jsonl);
    train(2, folder.small() + more +
                 Settings{{"log.jsonl", jsonl},
                          {"model.dropout", "0.1"},
                          {"train.gradient_accumulation_steps", "2"},
                          {"sharding.mixed_precision", "bf16"}});
    std::vector<std::int64_t> bytes;
    for (const auto& line : testing::metrics_in(jsonl))
      bytes.push_back(line.at("comm_bytes").get<std::int64_t>());
    return std::pair(testing::losses_in(jsonl), bytes);
  };
  const auto expected = run({{"sharding.sharding_strategy", "NO_SHARD"}}).first;
  ASSERT_FALSE(expected.empty());
  for (const Settings& strategy : testing::all_strategies({2})) {
    const auto plain = run(strategy);
    EXPECT_EQ(plain.first, expected);
    for (const Settings& how :
         {Settings{{"sharding.activation_checkpointing", "true"}},
          Settings{{"sharding.activation_checkpointing", "selective"},
                   {"sharding.activation_checkpointing_every", "2"}},
          Settings{{"sharding.activation_checkpointing", "true"},
                   {"sharding.activation_checkpointing_cls", "GPT2MLP,GPT2Attention"}}}) {
      EXPECT_EQ(run(strategy + how), plain) << nlohmann::json(strategy + how).dump();
    }
  }
}

// The ranks from which units are gathered after their forward change no digit, and determine the
// moved bytes: the backward of all units but the forward's last one gathers 3/4, 1/2 or nothing of
// them.
TEST(Strategies, ReshardAfterForwardPrintsTheSameBits) {
  const TrainingFolder folder;
  const std::string jsonl = folder.path("metrics.jsonl");
  const auto run = [&](const std::string& reshard) {
    std::filesystem::remove(jsonl);
    train(4, folder.small() + Settings{{"log.jsonl", jsonl},
                                       {"sharding.sharding_strategy", "FULL_SHARD"},
                                       {"sharding.reshard_after_forward", reshard}});
    return std::pair(testing::losses_in(jsonl),
                     testing::metrics_in(jsonl).back().at("comm_bytes").get<std::int64_t>());
  };
  const auto whole = run("true"), pairs = run("2"), kept = run("false");
  EXPECT_EQ(whole.first, pairs.first);
  EXPECT_EQ(whole.first, kept.first);
  const std::int64_t in_backward = whole.second - kept.second;
  EXPECT_GT(in_backward, 0);
  EXPECT_EQ(whole.second - pairs.second, in_backward / 3);  // 3/4 - 1/2 of 3/4
  EXPECT_EQ(run("4"), whole);
  EXPECT_EQ(run("1"), kept);
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
}  // namespace tessera::training

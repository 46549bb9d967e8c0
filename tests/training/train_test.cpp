// `tessera train`: it learns, and its metrics are correct.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

using nlohmann::json;
using testing::Ended;
using testing::metrics_in;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

TEST(Train, LossFallsAndProgressIsPrintedOnce) {
  const TrainingFolder folder;
  const Ended ended = train(2, folder.small() + Settings{{"train.steps", "60"},
                                                         {"train.lr", "3e-3"},
                                                         {"log.every", "30"},
                                                         {"log.jsonl", folder.path("m.jsonl")}});
  const auto steps = metrics_in(folder.path("m.jsonl"));
  ASSERT_EQ(steps.size(), 60u);
  EXPECT_NEAR(steps.front()["loss"].get<double>(), std::log(256), 0.5);
  EXPECT_LT(steps.back()["loss"].get<double>(), 3.0);
  EXPECT_NE(ended.err.find("120576 parameters, FULL_SHARD over 2 ranks (shm), "),
            std::string::npos);
  // The description, steps 1, 30 and 60, and that nothing was saved: only from rank 0.
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 5) << ended.err;
  EXPECT_EQ(ended.out, "");
}

TEST(Train, MetricsHaveEveryKeyWithASaneValue) {
  const TrainingFolder folder;
  train(2, folder.small() + Settings{{"train.steps", "5"},
                                     {"train.gradient_accumulation_steps", "2"},
                                     {"log.jsonl", folder.path("m.jsonl")}});
  const auto steps = metrics_in(folder.path("m.jsonl"));
  ASSERT_EQ(steps.size(), 5u);
  std::int64_t peak = 1 << 20;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const json& step = steps[i];
    EXPECT_EQ(step.size(), 12u) << step;
    EXPECT_EQ(step.at("step"), i + 1);
    EXPECT_GT(step.at("loss").get<double>(), 0);
    EXPECT_GT(step.at("grad_norm").get<double>(), 0);
    const double taken = step.at("step_s");
    EXPECT_GT(taken, 0);
    // 2 ranks x 2 micro-batches x 2 sequences of 64 tokens.
    EXPECT_NEAR(step.at("samples_per_s").get<double>() * taken, 8, 1e-6);
    EXPECT_NEAR(step.at("tokens_per_s").get<double>() * taken, 8 * 64, 1e-4);
    EXPECT_GE(step.at("exposed_comm_s").get<double>(), 0);
    EXPECT_LE(step.at("exposed_comm_s").get<double>(), taken);
    EXPECT_GE(step.at("peak_bytes").get<std::int64_t>(), peak);
    peak = step.at("peak_bytes");
    EXPECT_GT(step.at("comm_bytes").get<std::int64_t>(), 0);
    EXPECT_GE(step.at("cached_bytes").get<std::int64_t>(), 0);
  }
  EXPECT_NEAR(steps[0].at("lr").get<double>(), 0.5e-3, 1e-9);  // two steps of warm-up to 1e-3
  EXPECT_NEAR(steps[1].at("lr").get<double>(), 1e-3, 1e-9);
  EXPECT_LT(steps[4].at("lr").get<double>(), steps[2].at("lr").get<double>());
}

std::int64_t rounded_up(std::int64_t bytes, std::int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// The bytes sent to a rank in a step once the order of the units is known, in fp32. A whole flat
// buffer is padded to 256 bytes per shard, and a gather or reduction moves (W - 1)
// W of it.
std::int64_t expected_bytes(const std::string& strategy, int world) {
  constexpr std::int64_t width = 64, tokens = 256, positions = 64;
  // Gradients are in runs of 128 elements, under every strategy.
  const std::int64_t multiple = strategy == "NO_SHARD" ? 128 * 4 : 256 * world;
  const std::int64_t block = rounded_up(4 * (12 * width * width + 13 * width), multiple);
  const std::int64_t root = rounded_up(4 * ((tokens + positions) * width + 2 * width), multiple);
  // An all-reduce moves twice this for each unit, as do a gather and a reduce-scatter together.
  const auto twice = [&](std::int64_t bytes) { return 2 * bytes * (world - 1) / world; };
  const std::int64_t bytes = 2 * twice(block) + twice(root);
  // FULL_SHARD gathers the units again for the backward that were resharded after the forward: all
  // but the last one and the root.
  return strategy == "FULL_SHARD" ? bytes + twice(block) / 2 : bytes;
}

TEST(Train, BytesMovedFollowTheFormula) {
  for (const int world : {2, 3}) {
    for (const std::string strategy :
         {"NO_SHARD", "SHARD_OPTIMIZER", "SHARD_GRAD_OP", "FULL_SHARD"}) {
      const TrainingFolder folder;
      train(world, folder.small() + Settings{{"sharding.sharding_strategy", strategy},
                                             {"log.jsonl", folder.path("m.jsonl")}});
      const auto steps = metrics_in(folder.path("m.jsonl"));
      ASSERT_EQ(steps.size(), 3u);
      for (const std::size_t i : {1, 2}) {
        EXPECT_EQ(steps[i].at("comm_bytes"), expected_bytes(strategy, world))
            << strategy << " on " << world << " ranks, step " << i + 1;
      }
    }
  }
}

TEST(Train, OneRankNeedsNoLauncherAndMovesNothing) {
  const TrainingFolder folder;
  const Ended alone = run_program(
      train_arguments(folder.small() + Settings{{"log.jsonl", folder.path("alone.jsonl")}}));
  EXPECT_EQ(alone.code, 0) << alone.err;
  train(1, folder.small() + Settings{{"log.jsonl", folder.path("launched.jsonl")}});
  EXPECT_EQ(testing::losses_in(folder.path("alone.jsonl")),
            testing::losses_in(folder.path("launched.jsonl")));
  for (const json& step : metrics_in(folder.path("alone.jsonl"))) {
    EXPECT_EQ(step.at("comm_bytes"), 0);
  }
}

// As torchrun, mpirun or a user's script would start them.
TEST(Train, RanksMayBeStartedByAnyLauncher) {
  const TrainingFolder folder;
  train(2, folder.small() + Settings{{"log.jsonl", folder.path("launched.jsonl")}});
  std::vector<std::unique_ptr<testing::Program>> ranks;
  for (const char* rank : {"1", "0"}) {
    const std::map<std::string, std::string> environment = {
        {"RANK", rank},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", folder.path("")},
        {"OMP_NUM_THREADS", "1"}};
    ranks.push_back(std::make_unique<testing::Program>(
        train_arguments(folder.small() + Settings{{"log.jsonl", folder.path("by-hand.jsonl")}}),
        environment));
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 0) << rank->err();
  EXPECT_EQ(testing::losses_in(folder.path("by-hand.jsonl")),
            testing::losses_in(folder.path("launched.jsonl")));
}

TEST(Train, ValidationLossIsPrintedAndChangesNothing) {
  const TrainingFolder folder;
  folder.write("valid.txt", testing::sample_text(3000));
  train(2, folder.small() +
               Settings{{"log.jsonl", folder.path("without.jsonl")}, {"model.dropout", "0.1"}});
  const Ended ended = train(2, folder.small() + Settings{{"log.jsonl", folder.path("with.jsonl")},
                                                         {"model.dropout", "0.1"},
                                                         {"data.valid", folder.path("valid.txt")},
                                                         {"train.eval_every", "2"},
                                                         {"train.eval_batches", "2"}});
  EXPECT_NE(ended.err.find("step 2: validation loss 5."), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("step 3: validation loss 5."), std::string::npos) << ended.err;
  EXPECT_EQ(testing::losses_in(folder.path("with.jsonl")),
            testing::losses_in(folder.path("without.jsonl")));
}

TEST(Train, LlamaTrainsToo) {
  const TrainingFolder folder;
  folder.write("llama.yaml",
               "model: {architecture: llama, hidden_size: 64, intermediate_size: 96, "
               "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
               "seq_len: 32}\ndata: {train: " +
                   folder.path("text.txt") +
                   ", batch_size: 2}\ntrain: {steps: 3}\nsharding: {sharding_strategy: "
                   "HYBRID_SHARD_ZERO2, group_size: 2}\n");
  const Settings jsonl = {{"log.jsonl", folder.path("m.jsonl")}};
  const Ended ended =
      run_program(testing::launched(2, train_arguments(jsonl, folder.path("llama.yaml"))));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(metrics_in(folder.path("m.jsonl")).size(), 3u);
}

TEST(Train, ALossThatIsNotFiniteIsCode8AndNothingIsSaved) {
  const TrainingFolder folder;
  const Ended ended = run_program(testing::launched(
      2, train_arguments(folder.small() + Settings{{"train.lr", "1e30"},
                                                   {"train.warmup_steps", "0"},
                                                   {"checkpoint.dir", folder.path("saves")}})));
  EXPECT_EQ(ended.code, 8) << ended.err;
  EXPECT_NE(ended.err.find("tessera: error: step 2: loss nan"), std::string::npos) << ended.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("saves/step-3")));
}

}  // namespace
}  // namespace tessera::training

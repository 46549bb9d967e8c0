// data.rank_weights in the program: the same run, its memory to the byte, its logs, and what is
// refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/training/ranks/ranks_testing.h"
#include "tests/training/sentence_testing.h"

namespace tessera::training {
namespace {

using testing::Ended;
using testing::expect_close;
using testing::expect_recipe_refused;
using testing::json_in;
using testing::launched;
using testing::metrics_in;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

Settings weighted(const TrainingFolder& folder, const std::string& weights,
                  const std::string& name) {
  return folder.small() + Settings{{"data.batch_size", "4"},
                                   {"data.rank_weights", weights},
                                   {"model.dropout", "0.1"},
                                   {"train.gradient_accumulation_steps", "2"},
                                   {"log.jsonl", folder.path(name + ".jsonl")},
                                   {"log.memory", folder.path(name + ".memory.json")},
                                   {"log.summary", folder.path(name + ".summary.json")}};
}

// 3 ranks and 12 samples in the proportion 3:2:1 are one rank with 12.
TEST(RankWeightsOfARecipe, AreTheRunOfOneRank) {
  const TrainingFolder folder;
  train(1, weighted(folder, "[1]", "one") + Settings{{"data.batch_size", "12"}});
  train(3, weighted(folder, "[3, 2, 1]", "three"));
  expect_close(folder.path("three.jsonl"), folder.path("one.jsonl"), 2e-6);
  const auto steps = metrics_in(folder.path("three.jsonl"));
  EXPECT_EQ(steps.back().at("rank_samples"), nlohmann::json({6, 4, 2}));
  EXPECT_GE(steps.back().at("imbalance").get<double>(), 0);
}

// The measured memory of rank 0, and that of `tessera plan` for each rank.
TEST(RankWeightsOfARecipe, NeedTheMemoryOfTheirPlanToTheByte) {
  const TrainingFolder folder;
  const Settings settings = weighted(folder, "[3, 1]", "run");
  std::vector<std::string> arguments = {"plan",   testing::example_recipe(), "--world-size", "2",
                                        "--json", folder.path("plan.json")};
  for (const auto& [key, value] : settings) {
    arguments.insert(arguments.end(), {"--set", key + "=" + value});
  }
  const Ended planned = run_program(arguments);
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_NE(planned.out.find("bytes of a rank by its samples"), std::string::npos);
  const nlohmann::json plan = json_in(folder.path("plan.json"))["plans"][0];
  ASSERT_EQ(plan["by_samples"].size(), 2u);
  EXPECT_EQ(plan["by_samples"][0]["bytes"], plan["bytes"]);  // the largest part
  for (const int rank : {0, 1}) {
    const nlohmann::json& part = plan["by_samples"][rank];
    EXPECT_EQ(part["samples"], rank == 0 ? 6 : 2);
    EXPECT_EQ(part["ranks"], nlohmann::json({rank}));
    const std::string weights = rank == 0 ? "[3, 1]" : "[1, 3]";
    train(2, settings + Settings{{"data.rank_weights", weights}});
    const nlohmann::json memory = json_in(folder.path("run.memory.json"));
    EXPECT_EQ(memory["measured"], memory["planned"]) << weights;
    EXPECT_EQ(memory["measured"], part["bytes"]) << weights;
    EXPECT_EQ(memory["placed"]["measured"], part["placed"]) << weights;
  }
}

TEST(RankWeightsOfARecipe, OfAutoAreInTheLogsAndPlannedForTheLargestPart) {
  const TrainingFolder folder;
  const Ended ended =
      train(2, weighted(folder, "auto", "auto") + Settings{{"data.rebalance_every", "1"},
                                                           {"data.rank_weights_limit", "1.5"},
                                                           {"train.steps", "6"}});
  EXPECT_NE(ended.err.find("the ranks' parts of a batch: "), std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find("memory is not as planned"), std::string::npos) << ended.err;
  for (const nlohmann::json& step : metrics_in(folder.path("auto.jsonl"))) {
    const auto samples = step.at("rank_samples").get<std::vector<std::int64_t>>();
    ASSERT_EQ(samples.size(), 2u);
    EXPECT_EQ(samples[0] + samples[1], 8);
    EXPECT_LE(std::max(samples[0], samples[1]), 6);
  }
  const nlohmann::json summary = json_in(folder.path("auto.summary.json"));
  EXPECT_EQ(summary["rank_samples"].size(), 2u);
  EXPECT_GE(summary["rebalances"].get<int>(), 0);
  EXPECT_GE(summary["imbalance"].get<double>(), 0);
  const nlohmann::json memory = json_in(folder.path("auto.memory.json"));
  EXPECT_GE(memory["planned"]["total"], memory["measured"]["total"]);
  train(2, weighted(folder, "[3, 1]", "fixed"));
  EXPECT_EQ(json_in(folder.path("fixed.memory.json"))["measured"], memory["planned"]);
}

// A run that goes on with other weights has the curve of one with equal parts.
TEST(RankWeightsOfARecipe, ResumeToOthers) {
  const TrainingFolder folder;
  Settings equal = weighted(folder, "", "equal") + Settings{{"train.steps", "6"}};
  equal.erase("data.rank_weights");
  train(2, equal);
  const Settings saving{{"checkpoint.dir", folder.path("run")}};
  train(2, weighted(folder, "[3, 1]", "run") + saving + Settings{{"train.steps", "2"}});
  Settings back = equal + saving + Settings{{"train.steps", "4"}};
  back["log.jsonl"] = folder.path("run.jsonl");
  train(2, back);
  train(2, weighted(folder, "auto", "run") + saving + Settings{{"train.steps", "6"}});
  expect_close(folder.path("run.jsonl"), folder.path("equal.jsonl"), 2e-6);
}

// Texts have different lengths, and a batch is padded to its longest.
TEST(RankWeightsOfARecipe, OfSentencesAreTheRunOfEqualParts) {
  const testing::SentenceFolder folder(0);
  const std::string sets = "[" + folder.pairs("cosine_similarity") + ", " + folder.classes() + "]";
  const auto curve = [&](const std::string& name, const Settings& more) {
    std::string jsonl = folder.path(name);
    testing::train_sentences(
        2, folder.small() + Settings{{"data.train", sets}, {"log.jsonl", jsonl}} + more);
    return jsonl;
  };
  const std::string equal = curve("equal.jsonl", {});
  expect_close(curve("weighted.jsonl", {{"data.rank_weights", "[3, 1]"}}), equal, 3e-6);
}

TEST(RankWeightsOfARecipe, RefuseBadValues) {
  const TrainingFolder folder;
  const Settings saving{{"checkpoint.dir", folder.path("out")},
                        {"log.jsonl", folder.path("out.jsonl")}};
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"data.rank_weights", "[1, 2, 3]"}},
       "data.rank_weights has 3 weights for 2 ranks; give one for each rank, or auto"},
      {{{"data.rank_weights", "[1, 0]"}}, "data.rank_weights must be above 0, got 0"},
      {{{"data.rank_weights", "[1, -2]"}}, "data.rank_weights must be above 0, got -2"},
      {{{"data.rank_weights", "[1, .nan]"}}, "must be a finite number, got .nan"},
      {{{"data.rank_weights", "[1, .inf]"}}, "must be a finite number, got .inf"},
      {{{"data.rank_weights", "fast"}}, "must be auto or a list of numbers, one for each rank"},
      {{{"data.rank_weights", "2"}}, "must be auto or a list of numbers, one for each rank"},
      {{{"data.rebalance_every", "5"}}, "data.rebalance_every needs data.rank_weights: auto"},
      {{{"data.rank_weights", "[1, 2]"}, {"data.rank_weights_limit", "3"}},
       "data.rank_weights_limit needs data.rank_weights: auto"},
      {{{"data.rank_weights", "auto"}, {"data.rebalance_every", "0"}}, "must be at least 1, got 0"},
      {{{"data.rank_weights", "auto"}, {"data.rank_weights_limit", "0.5"}},
       "data.rank_weights_limit must be at least 1, got 0.5"},
  };
  for (const auto& [settings, message] : cases) {
    expect_recipe_refused(
        run_program(launched(2, train_arguments(folder.small() + saving + settings))), message);
  }
  // Losses that depend on how the samples are split.
  const testing::SentenceFolder sentences(0);
  const Settings ranking{{"data.train", sentences.pairs("multiple_negatives_ranking")},
                         {"data.rank_weights", "[3, 1]"}};
  expect_recipe_refused(testing::train_sentences(2, sentences.small() + ranking, 3),
                        "data.rank_weights: the ranks' parts must be equal, because "
                        "multiple_negatives_ranking compares the texts of all ranks");
  folder.write("experts.yaml",
               "model: {architecture: mixtral, hidden_size: 40, intermediate_size: 20, "
               "num_local_experts: 4, num_hidden_layers: 1, num_attention_heads: 4, "
               "num_key_value_heads: 2, seq_len: 32, output_router_logits: true}\n"
               "data: {train: " +
                   folder.path("text.txt") +
                   ", tokenizer: bytes, batch_size: 2, "
                   "rank_weights: [3, 1]}\ntrain: {steps: 3}\n");
  expect_recipe_refused(run_program(launched(2, {"train", folder.path("experts.yaml")})),
                        "because output_router_logits adds the load-balancing loss");
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.jsonl")));
}

}  // namespace
}  // namespace tessera::training

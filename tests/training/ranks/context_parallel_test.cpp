// sharding.context_parallel in the program: the run of one rank, its memory and its bytes as
// planned, resumes with other values, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/training/ranks/ranks_testing.h"
#include "tests/training/sentence_testing.h"
#include "tests/training/strategies_testing.h"

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

Settings over(int ranks, const TrainingFolder& folder, const std::string& name) {
  return folder.small() + Settings{{"model.n_head", "4"},
                                   {"sharding.context_parallel", std::to_string(ranks)},
                                   {"train.gradient_accumulation_steps", "2"},
                                   {"log.jsonl", folder.path(name + ".jsonl")},
                                   {"log.memory", folder.path(name + ".memory.json")}};
}

nlohmann::json plan_of(int world, const TrainingFolder& folder, const Settings& settings) {
  std::vector<std::string> arguments = {"plan",         testing::example_recipe(),
                                        "--world-size", std::to_string(world),
                                        "--json",       folder.path("plan.json")};
  for (const auto& [key, value] : settings) {
    arguments.insert(arguments.end(), {"--set", key + "=" + value});
  }
  const Ended planned = run_program(arguments);
  EXPECT_EQ(planned.code, 0) << planned.err;
  return json_in(folder.path("plan.json"))["plans"][0];
}

// Two blocks of two ranks with a micro-batch of 2 each are one rank with 4; four heads do not
// divide over three ranks.
TEST(ContextParallelOfARecipe, IsTheRunOfOneRank) {
  const TrainingFolder folder;
  const auto runs = [&](const std::string& suffix, const Settings& more) {
    train(1, over(1, folder, "one" + suffix) + Settings{{"data.batch_size", "4"}} + more);
    train(4, over(2, folder, "two" + suffix) + more);
  };
  runs("", {});
  expect_close(folder.path("two.jsonl"), folder.path("one.jsonl"), 2e-6);
  runs("-evaluated", {{"data.valid", folder.path("text.txt")}, {"train.eval_every", "3"}});
  const auto loss = [&](const std::string& name) {
    return metrics_in(folder.path(name)).back().at("valid_loss").get<double>();
  };
  EXPECT_NEAR(loss("two-evaluated.jsonl"), loss("one-evaluated.jsonl"), 2e-5);
  train(1, over(1, folder, "long") + Settings{{"model.seq_len", "66"}});
  train(3, over(3, folder, "three") + Settings{{"model.seq_len", "66"}});
  expect_close(folder.path("three.jsonl"), folder.path("long.jsonl"), 2e-6);
}

TEST(ContextParallelOfARecipe, HasTheSameBitsUnderEveryStrategy) {
  testing::expect_equal_bits(4, {2}, {{"model.n_head", "4"}, {"sharding.context_parallel", "2"}});
  testing::expect_equal_bits(2, {1, 2},
                             {{"model.n_head", "4"},
                              {"sharding.context_parallel", "2"},
                              {"sharding.mixed_precision", "bf16"},
                              {"sharding.activation_checkpointing", "true"}});
}

TEST(ContextParallelOfARecipe, NeedsTheMemoryOfItsPlanToTheByte) {
  const TrainingFolder folder;
  for (const char* recomputes : {"false", "true"}) {
    const Settings settings =
        over(2, folder, "run") + Settings{{"sharding.activation_checkpointing", recomputes}};
    const nlohmann::json plan = plan_of(4, folder, settings);
    train(4, settings);
    const nlohmann::json memory = json_in(folder.path("run.memory.json"));
    EXPECT_EQ(memory["measured"], memory["planned"]) << recomputes;
    EXPECT_EQ(memory["measured"], plan["bytes"]) << recomputes;
    EXPECT_EQ(memory["placed"]["measured"], plan["placed"]) << recomputes;
  }
}

// (ranks - 1) / ranks of the packed projections and of the attention's result, in each layer, and
// as much again in the backward.
TEST(ContextParallelOfARecipe, SendsTheBytesOfTheFormula) {
  const TrainingFolder folder;
  const nlohmann::json plan = plan_of(4, folder, over(2, folder, "run"));
  std::map<std::string, std::int64_t> bytes;
  for (const nlohmann::json& call : plan["collectives"]) {
    if (call["op"] == "all_to_all") bytes[call["phase"]] += call["bytes"].get<std::int64_t>();
  }
  constexpr std::int64_t layers = 2, micro_batches = 2, tokens = 2 * 64 / 2, width = 64;
  const std::int64_t expected = layers * micro_batches * tokens * (3 + 1) * width * 4 / 2;
  EXPECT_EQ(bytes["forward"], expected);
  EXPECT_EQ(bytes["backward"], expected);
}

// The summary has the exchanges by phase, as the plan, and what they cost as exposed time; gathered
// keys count as well.
TEST(ContextParallelOfARecipe, IsInTheSummaryAsInThePlan) {
  const TrainingFolder folder;
  for (const char* heads : {"4", "1"}) {
    const Settings settings =
        over(2, folder, "run") + Settings{{"model.n_head", heads},
                                          {"log.summary", folder.path("summary.json")},
                                          {"train.steps", "5"}};
    const nlohmann::json plan = plan_of(2, folder, settings);
    train(2, settings);
    const nlohmann::json summary = json_in(folder.path("summary.json"));
    std::map<std::string, std::int64_t> planned, counted;
    for (const nlohmann::json& call : plan["collectives"]) {
      planned[call["op"].get<std::string>()] += call["bytes"].get<std::int64_t>();
    }
    for (const nlohmann::json& call : summary["collectives"]) {
      counted[call["collective"].get<std::string>()] += call["bytes"].get<std::int64_t>();
    }
    EXPECT_EQ(counted, planned) << heads;
    EXPECT_GT(summary["exposed_s"]["other"].get<double>(), 0) << heads;
    const auto steps = metrics_in(folder.path("run.jsonl"));
    std::int64_t all = 0;
    for (const auto& [op, bytes] : planned) all += bytes;
    EXPECT_EQ(steps.back()["comm_bytes"], all) << heads;
  }
}

// Four ranks hold four times the sequence with the activations of one, and the copies for an
// exchange.
TEST(ContextParallelOfARecipe, DividesTheActivations) {
  const TrainingFolder folder;
  const auto activations = [&](int ranks, int length) {
    const nlohmann::json plan =
        plan_of(4, folder,
                over(ranks, folder, "run") + Settings{{"model.seq_len", std::to_string(length)}});
    return plan["bytes"]["activations"].get<double>();
  };
  const double one = activations(1, 256);
  EXPECT_NEAR(activations(4, 1024), one, 0.08 * one);
}

// A run goes on with another number of ranks for a sequence.
TEST(ContextParallelOfARecipe, ResumesWithOthers) {
  const TrainingFolder folder;
  train(2, over(1, folder, "whole") + Settings{{"train.steps", "6"}});
  const Settings saving{{"checkpoint.dir", folder.path("run")}};
  train(2, over(1, folder, "run") + saving + Settings{{"train.steps", "2"}});
  train(2,
        over(2, folder, "run") + saving + Settings{{"train.steps", "4"}, {"data.batch_size", "4"}});
  train(4, over(2, folder, "run") + saving + Settings{{"train.steps", "6"}});
  expect_close(folder.path("run.jsonl"), folder.path("whole.jsonl"), 2e-6);
}

// Ranks draw masks of their own; the run learns as without.
TEST(ContextParallelOfARecipe, TakesDropout) {
  const TrainingFolder folder;
  train(2, over(2, folder, "dropped") + Settings{{"model.dropout", "0.1"}, {"train.steps", "20"}});
  train(2, over(2, folder, "plain") + Settings{{"train.steps", "20"}});
  const auto dropped = metrics_in(folder.path("dropped.jsonl"));
  const auto plain = metrics_in(folder.path("plain.jsonl"));
  EXPECT_NE(dropped.back().at("loss"), plain.back().at("loss"));
  EXPECT_NEAR(dropped.back().at("loss").get<double>(), plain.back().at("loss").get<double>(), 0.1);
}

TEST(ContextParallelOfARecipe, RefusesBadValues) {
  const TrainingFolder folder;
  const Settings saving{{"checkpoint.dir", folder.path("out")},
                        {"log.jsonl", folder.path("out.jsonl")}};
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"sharding.context_parallel", "0"}}, "sharding.context_parallel must be at least 1, got 0"},
      {{{"sharding.context_parallel", "3"}}, "sharding.context_parallel 3 does not divide the 2 "},
      {{{"sharding.context_parallel", "2"}, {"model.seq_len", "63"}},
       "sharding.context_parallel 2 does not divide model.seq_len 63"},
      {{{"sharding.context_parallel", "2"}, {"data.seq_len_ramp", "{1: 1, 2: 64}"}},
       "sharding.context_parallel 2 does not divide the 1 of data.seq_len_ramp"},
      {{{"sharding.context_parallel", "2"}, {"data.rank_weights", "auto"}},
       "sharding.context_parallel and data.rank_weights exclude each other"},
  };
  for (const auto& [settings, message] : cases) {
    expect_recipe_refused(
        run_program(launched(2, train_arguments(folder.small() + saving + settings))), message);
  }
  const testing::SentenceFolder sentences(0);
  expect_recipe_refused(
      testing::train_sentences(
          2,
          sentences.small() + Settings{{"data.train", sentences.pairs("cosine_similarity")},
                                       {"sharding.context_parallel", "2"}},
          3),
      "sharding.context_parallel is for train.task: next_token and sft");
  folder.write("experts.yaml",
               "model: {architecture: mixtral, hidden_size: 40, intermediate_size: 20, "
               "num_local_experts: 4, num_hidden_layers: 1, num_attention_heads: 4, "
               "num_key_value_heads: 2, seq_len: 32, output_router_logits: true}\n"
               "data: {train: " +
                   folder.path("text.txt") +
                   ", tokenizer: bytes, batch_size: 2}\ntrain: {steps: 3}\n"
                   "sharding: {context_parallel: 2}\n");
  expect_recipe_refused(
      run_program(launched(2, {"train", folder.path("experts.yaml")})),
      "sharding.context_parallel: output_router_logits adds the load-balancing loss");
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.jsonl")));
}

}  // namespace
}  // namespace tessera::training

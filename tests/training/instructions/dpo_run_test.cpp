// Runs of train.task: dpo: the same bits under every strategy, memory as planned, resumes on other
// worlds, adapters without a second copy, evaluation by the same loss, and bad input.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/training/compression/saved_weights.h"
#include "tests/training/strategies_testing.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

// A prompt and two answers of a few words, which depend on the number.
std::string pair_line(int number) {
  const auto words = [&](int factor, int most) {
    return sample_text(static_cast<std::size_t>(3 + number * factor % most));
  };
  return json{{"prompt", words(7, 23) + std::to_string(number) + "? "},
              {"chosen", words(5, 19) + "yes"},
              {"rejected", words(11, 17) + "no"}}
             .dump() +
         "\n";
}

class DpoRun : public ::testing::Test {
 protected:
  DpoRun() {
    std::string lines;
    for (int i = 0; i < 60; ++i) lines += pair_line(i);
    folder_.write("pairs.jsonl", lines);
    lines.clear();
    for (int i = 100; i < 111; ++i) lines += pair_line(i);
    folder_.write("valid.jsonl", lines);
    train(1, folder_.small() + Settings{{"model.n_layer", "1"},
                                        {"train.steps", "1"},
                                        {"data.train", folder_.path("text.txt")},
                                        {"checkpoint.export", start()}});
    folder_.write("dpo.yaml", "model: {pretrained: " + start() +
                                  ", seq_len: 64}\ndata: {train: " + folder_.path("pairs.jsonl") +
                                  ", tokenizer: bytes, batch_size: 2}\n"
                                  "train: {task: dpo, steps: 3, lr: 1.0e-2}\n");
  }

  [[nodiscard]] std::string start() const { return folder_.path("start"); }
  [[nodiscard]] std::vector<std::string> arguments(const Settings& settings) const {
    return train_arguments(settings, folder_.path("dpo.yaml"));
  }
  Ended run(int ranks, const Settings& settings) const {
    Ended ended = run_program(launched(ranks, arguments(settings)));
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended;
  }
  [[nodiscard]] std::vector<std::string> losses_of(int ranks, const Settings& settings) const {
    const std::string jsonl = folder_.path("metrics.jsonl");
    std::filesystem::remove(jsonl);
    run(ranks, settings + Settings{{"log.jsonl", jsonl}});
    return losses_in(jsonl);
  }
  void expect_refused(const Settings& settings, int code, const std::string& problem) const {
    const Ended ended = run_program(arguments(settings));
    EXPECT_EQ(ended.code, code) << ended.err;
    EXPECT_NE(ended.err.find(problem), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }

  TrainingFolder folder_;
  const Settings adapter_ = {{"model.lora.target_modules", "all-linear"}, {"model.lora.r", "2"}};
};

TEST_F(DpoRun, HasTheSameBitsUnderEveryStrategy) {
  std::vector<std::string> expected;
  for (const Settings& strategy : all_strategies({1, 2})) {
    const auto losses = losses_of(2, strategy);
    ASSERT_EQ(losses.size(), 3U);
    if (expected.empty()) expected = losses;
    EXPECT_EQ(losses, expected) << json(strategy).dump();
  }
}

// Ranks with unequal parts of a batch.
TEST_F(DpoRun, HasTheSameLossesWithUnequalParts) {
  const auto curve = [&](const std::string& name, const Settings& more) {
    std::string jsonl = folder_.path(name);
    run(2, more + Settings{{"data.batch_size", "4"}, {"log.jsonl", jsonl}});
    return jsonl;
  };
  const std::string equal = curve("equal.jsonl", {});
  expect_close(curve("weighted.jsonl", {{"data.rank_weights", "[1, 3]"}}), equal, 1e-5);
}

// It begins at log 2 without any reward. The first step's metrics say so, the later ones move.
TEST_F(DpoRun, BeginsAtItsReferenceAndMovesAway) {
  for (const Settings& more : {Settings{}, adapter_}) {
    const std::string jsonl = folder_.path(more.empty() ? "whole.jsonl" : "adapter.jsonl");
    run(2, more + Settings{{"log.jsonl", jsonl}, {"train.steps", "4"}});
    const auto steps = metrics_in(jsonl);
    EXPECT_NEAR(steps.front().at("loss").get<double>(), std::log(2.0), 1e-6);
    EXPECT_NEAR(steps.front().at("rewards_margin").get<double>(), 0, 1e-6);
    EXPECT_NE(steps.back().at("rewards_chosen").get<double>(), 0);
    EXPECT_NEAR(steps.back().at("rewards_margin").get<double>(),
                steps.back().at("rewards_chosen").get<double>() -
                    steps.back().at("rewards_rejected").get<double>(),
                1e-6);
  }
}

// An adapter's reference is the model under it: as a frozen copy of this model, without its memory.
// Without an adapter at c_proj both compute the MLP as one op, which adds the bias of c_fc after
// the product. With one the bias is added in the product, which may round differently.
TEST_F(DpoRun, AnAdapterNeedsNoSecondCopy) {
  const Settings full =
      adapter_ + Settings{{"model.lora.target_modules", "[c_attn, c_fc]"}, {"train.steps", "4"}};
  const auto memory = [&] {
    const json measured = json::parse(read_text(folder_.path("m.json"))).at("measured");
    std::filesystem::remove(folder_.path("m.json"));
    return measured.at("parameters").get<std::int64_t>();
  };
  const Settings logged = full + Settings{{"log.memory", folder_.path("m.json")}};
  const auto expected = losses_of(2, logged + Settings{{"train.dpo.reference", start()}});
  const std::int64_t with_copy = memory();
  EXPECT_EQ(losses_of(2, logged), expected);
  const std::int64_t alone = memory();
  EXPECT_LT(alone, with_copy * 3 / 4);
  const auto curve_of = [&](const std::string& name, const Settings& more) {
    std::string jsonl = folder_.path(name);
    run(2, adapter_ + more + Settings{{"train.steps", "4"}, {"log.jsonl", jsonl}});
    return jsonl;
  };
  expect_close(curve_of("alone.jsonl", {}),
               curve_of("copy.jsonl", {{"train.dpo.reference", start()}}), 1e-5);
}

TEST_F(DpoRun, NeedsThePlannedMemoryAndSaysWhatItDidWithTheData) {
  // Pairs that are as long as a row: the plan, which is for them, is exact.
  std::string lines;
  for (int i = 0; i < 12; ++i) {
    lines += json{{"prompt", sample_text(30)},
                  {"chosen", std::to_string(i) + sample_text(60)},
                  {"rejected", std::to_string(i + 1) + sample_text(60)}}
                 .dump() +
             "\n";
  }
  lines += R"({"prompt": "a", "chosen": "b", "rejected": "b"})"
           "\n"
           R"({"prompt": "a", "chosen": "", "rejected": "b"})"
           "\n";
  folder_.write("long.jsonl", lines);
  for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP"}) {
    for (const Settings& more : {Settings{}, adapter_}) {
      const Ended ended = run(2, more + Settings{{"data.train", folder_.path("long.jsonl")},
                                                 {"data.valid", folder_.path("valid.jsonl")},
                                                 {"sharding.sharding_strategy", strategy},
                                                 {"log.memory", folder_.path("m.json")},
                                                 {"log.summary", folder_.path("s.json")}});
      EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
      EXPECT_NE(ended.err.find("data: pairs 14, left out without answer 1, left out without "
                               "difference 1, cut at seq len 12, "),
                std::string::npos)
          << ended.err;
      const json data = json::parse(read_text(folder_.path("s.json"))).at("data");
      EXPECT_EQ(data.at("tokens"), 12 * 2 * 64);
      EXPECT_EQ(data.at("valid_pairs"), 11);
      const json memory = json::parse(read_text(folder_.path("m.json")));
      EXPECT_EQ(memory.at("planned"), memory.at("measured")) << strategy;
      std::filesystem::remove(folder_.path("m.json"));
      std::filesystem::remove(folder_.path("s.json"));
    }
  }
}

TEST_F(DpoRun, GoesOnWithTheSamePairsAndReferenceOnAnotherWorld) {
  for (const Settings& more : {Settings{}, adapter_}) {
    const std::string name = more.empty() ? "whole" : "adapter";
    const auto settings = [&](const std::string& run, int steps) {
      return more + Settings{{"train.steps", std::to_string(steps)},
                             {"train.lr_decay_steps", "50"},
                             {"train.optimizer", "sgd"},
                             {"train.lr", "0.05"},
                             {"data.batch_size", "6"},
                             {"data.split_batches", "true"},
                             {"checkpoint.dir", folder_.path(name + run)},
                             {"checkpoint.every", "4"},
                             {"log.jsonl", folder_.path(name + run + ".jsonl")}};
    };
    run(1, settings("one", 12));
    run(2, settings("more", 4));
    run(3, settings("more", 12));
    expect_close(folder_.path(name + "more.jsonl"), folder_.path(name + "one.jsonl"), 1e-5);
  }
  const Ended other = run_program(arguments({{"train.steps", "20"},
                                             {"data.train", folder_.path("valid.jsonl")},
                                             {"train.optimizer", "sgd"},
                                             {"checkpoint.dir", folder_.path("wholeone")}}));
  EXPECT_EQ(other.code, 4) << other.err;
  EXPECT_NE(other.err.find("the pairs are not those"), std::string::npos) << other.err;
}

// `tessera evaluate` has the run's validation numbers, also of an adapter.
TEST_F(DpoRun, IsEvaluatedByTheSameLoss) {
  for (const Settings& more : {Settings{}, adapter_}) {
    const std::string steps = folder_.path(more.empty() ? "steps" : "adapters");
    const std::string metrics = folder_.path("metrics.jsonl");
    std::filesystem::remove(metrics);
    run(2, more + Settings{{"data.valid", folder_.path("valid.jsonl")},
                           {"checkpoint.dir", steps},
                           {"log.jsonl", metrics},
                           {"log.csv", folder_.path("metrics.csv")}});
    const json expected = metrics_in(metrics).back();
    std::vector<std::string> command = {"evaluate",  steps,
                                        "--task",    "dpo",
                                        "--data",    folder_.path("valid.jsonl"),
                                        "--seq-len", "64",
                                        "--json",    folder_.path("e.json")};
    if (more.empty()) command.insert(command.end(), {"--reference", start()});
    const Ended ended = run_program(command);
    ASSERT_EQ(ended.code, 0) << ended.err;
    const json found = json::parse(read_text(folder_.path("e.json")));
    for (const char* key : {"loss", "rewards_chosen", "rewards_accuracy", "rewards_margin"}) {
      EXPECT_NEAR(found.at(key).get<double>(),
                  expected.at(std::string("valid_") + key).get<double>(), 1e-5)
          << key;
    }
    EXPECT_EQ(found.at("samples"), 11);
    EXPECT_EQ(found.at("data").at("pairs"), 11);
    EXPECT_NE(read_text(folder_.path("metrics.csv")).find(",rewards_margin,"), std::string::npos);
    std::filesystem::remove(folder_.path("metrics.csv"));
  }
  const Ended none = run_program(
      {"evaluate", folder_.path("steps"), "--task", "dpo", "--data", folder_.path("valid.jsonl")});
  EXPECT_EQ(none.code, 2) << none.err;
  EXPECT_NE(none.err.find("--task dpo needs --reference"), std::string::npos) << none.err;
}

TEST_F(DpoRun, RefusesBadInputInOneLine) {
  expect_refused({{"train.task", "sft"}, {"train.dpo.beta", "0.2"}}, 3,
                 "train.dpo.beta is for train.task: dpo");
  expect_refused({{"train.dpo.beta", "0"}}, 3, "above 0");
  expect_refused({{"train.dpo.label_smoothing", "0.6"}}, 3, "train.dpo.label_smoothing");
  expect_refused({{"train.dpo.label_smoothing", "0.1"}, {"train.dpo.loss", "ipo"}}, 3,
                 "is for train.dpo.loss: sigmoid");
  expect_refused({{"train.dpo.loss", "kto"}}, 3, "must be one of sigmoid | ipo | hinge");
  expect_refused({{"train.dpo.reference", folder_.path("none")}}, 5, "train.dpo.reference: ");
  expect_refused({{"train.teacher", start()}}, 3, "train.teacher is for");
  expect_refused({{"data.packing", "true"}}, 3, "data.packing is for train.task: sft");
  expect_refused({{"data.loss_on", "all"}}, 3, "data.loss_on is for train.task: sft");
  expect_refused({{"data.train", folder_.path("text.txt")}}, 4,
                 "pairs of answers are in Parquet, Arrow or JSON lines");
  expect_refused({{"model.seq_len", "2"}}, 4, "none of 60 pairs has two different answers");
  folder_.write("bad.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\"}\n");
  expect_refused({{"data.train", folder_.path("bad.jsonl")}}, 4,
                 "line 1: no columns chosen and rejected; it has prompt, chosen");
  const Ended fresh = run_program(
      train_arguments(folder_.small() + Settings{{"train.task", "dpo"},
                                                 {"data.train", folder_.path("pairs.jsonl")}}));
  EXPECT_EQ(fresh.code, 3) << fresh.err;
  EXPECT_NE(fresh.err.find("dpo needs model.pretrained"), std::string::npos) << fresh.err;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path("."))) {
    EXPECT_EQ(entry.path().filename().string().find("_bad"), std::string::npos) << entry.path();
  }
}

TEST_F(DpoRun, NamesAReferenceThatIsNotFinite) {
  const std::string spoiled = folder_.path("spoiled");
  std::filesystem::copy(start(), spoiled);
  spoil_weights(spoiled + "/model.safetensors", "ln_f.weight");
  const Ended ended = run_program(launched(2, arguments({{"train.dpo.reference", spoiled}})));
  EXPECT_EQ(ended.code, 8) << ended.err;
  EXPECT_NE(ended.err.find("because the reference's log-probabilities are not"), std::string::npos)
      << ended.err;
}

}  // namespace
}  // namespace tessera::testing

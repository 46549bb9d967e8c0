// Pruned runs: as many zeros as asked for, the same ones under every strategy, kept over steps,
// checkpoints and worlds.
#include "tests/training/compression/saved_weights.h"
#include "tests/training/sentence_testing.h"
#include "tests/training/strategies_testing.h"

#include <cmath>

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::all_strategies;
using testing::Ended;
using testing::is_pruned_weight;
using testing::losses_in;
using testing::run_program;
using testing::SavedWeight;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;
using testing::weights_in;
using testing::zeros_of;

// Zeros and elements of the linear layers; everything else has no zeros.
std::pair<std::size_t, std::size_t> zeros_in(const std::string& folder) {
  std::size_t zeros = 0, elements = 0;
  for (const auto& [name, weight] : weights_in(folder)) {
    if (is_pruned_weight(name)) {
      zeros += zeros_of(weight);
      elements += weight.values.size();
    } else if (weight.shape.size() == 2) {
      EXPECT_EQ(zeros_of(weight), 0u) << name;
    }
  }
  EXPECT_EQ(elements, 2u * 12 * 64 * 64);
  return {zeros, elements};
}

Settings pruned(const TrainingFolder& folder, const std::string& method) {
  return folder.small() + Settings{{"train.steps", "6"},           {"train.lr", "0.01"},
                                   {"train.prune.method", method}, {"train.prune.begin", "1"},
                                   {"train.prune.end", "4"},       {"train.prune.every", "1"},
                                   {"checkpoint.every", "1"}};
}

TEST(PrunedRun, EveryStrategyPrunesTheSameElements) {
  for (const std::string method : {"global", "per_layer", "2:4", "wanda", "wanda_2:4"}) {
    const TrainingFolder folder;
    std::vector<std::string> expected;
    std::string weights;
    for (const Settings& strategy : all_strategies({2})) {
      const std::string dir = folder.path("run"), jsonl = folder.path("metrics.jsonl");
      fs::remove_all(dir);
      fs::remove(jsonl);
      train(4, pruned(folder, method) + strategy +
                   Settings{{"log.jsonl", jsonl},
                            {"checkpoint.dir", dir},
                            {"checkpoint.every", "6"},
                            {"sharding.mixed_precision", "bf16"}});
      const std::string bytes = testing::read_text(dir + "/step-6/model.safetensors");
      if (expected.empty()) {
        expected = losses_in(jsonl);
        weights = bytes;
        const auto [zeros, elements] = zeros_in(dir + "/step-6");
        EXPECT_EQ(zeros, elements / 2) << method;
      }
      EXPECT_EQ(losses_in(jsonl), expected) << method << nlohmann::json(strategy).dump();
      EXPECT_TRUE(bytes == weights) << method << nlohmann::json(strategy).dump();
    }
  }
}

// After each step the part of zeros is the schedule's, and a zero stays one.
TEST(PrunedRun, FollowsTheScheduleAndKeepsZeros) {
  const TrainingFolder folder;
  const std::string dir = folder.path("run");
  train(2, pruned(folder, "global") + Settings{{"checkpoint.dir", dir}});
  std::map<std::string, SavedWeight> before;
  for (int step = 1; step <= 6; ++step) {
    const std::string path = dir + "/step-" + std::to_string(step);
    const auto [zeros, elements] = zeros_in(path);
    const double rest = (4.0 - std::min(step, 4)) / 3;
    const double wanted = 0.5 * (1 - rest * rest * rest) * static_cast<double>(elements);
    EXPECT_EQ(zeros, static_cast<std::size_t>(std::llround(wanted))) << step;
    auto now = weights_in(path);
    for (const auto& [name, weight] : before) {
      if (!is_pruned_weight(name)) continue;
      for (std::size_t i = 0; i < weight.values.size(); ++i) {
        if (weight.values[i] == 0) {
          ASSERT_EQ(now.at(name).values[i], 0) << name << " " << i;
        }
      }
    }
    before = std::move(now);
  }
}

TEST(PrunedRun, PerLayerAndTwoFourCountInEachWeight) {
  const TrainingFolder folder;
  for (const std::string method : {"per_layer", "2:4"}) {
    const std::string dir = folder.path(method == "2:4" ? "groups" : "layers");
    train(3, pruned(folder, method) + Settings{{"checkpoint.dir", dir}});
    for (const auto& [name, weight] : weights_in(dir + "/step-6")) {
      if (!is_pruned_weight(name)) continue;
      EXPECT_EQ(zeros_of(weight), weight.values.size() / 2) << method << " " << name;
      if (method != "2:4") continue;
      const std::size_t outputs = weight.shape[1];  // GPT-2's [in, out]
      for (std::size_t in = 0; in < weight.shape[0]; in += 4) {
        for (std::size_t out = 0; out < outputs; ++out) {
          int zeros = 0;
          for (std::size_t i = 0; i < 4; ++i) {
            if (weight.values[(in + i) * outputs + out] == 0) ++zeros;
          }
          ASSERT_EQ(zeros, 2) << name << " inputs from " << in << ", output " << out;
        }
      }
    }
  }
}

TEST(PrunedRun, ResumesWithTheSameBitsAndKeepsZerosOnAnotherWorld) {
  const TrainingFolder folder;
  const auto run = [&](int ranks, const std::string& name, int steps) {
    train(ranks, pruned(folder, "global") + Settings{{"train.steps", std::to_string(steps)},
                                                     {"train.prune.end", "4"},
                                                     {"data.batch_size", std::to_string(6 / ranks)},
                                                     {"log.jsonl", folder.path(name + ".jsonl")},
                                                     {"checkpoint.dir", folder.path(name)}});
  };
  run(2, "whole", 8);
  // Stopped in the middle of the schedule, and behind it.
  for (const char* name : {"early", "late"}) {
    run(2, name, 5);
    const int keep = std::string(name) == "early" ? 2 : 5;
    for (int step = keep + 1; step <= 5; ++step) {
      fs::remove_all(folder.path(std::string(name) + "/step-" + std::to_string(step)));
    }
    run(2, name, 8);
    EXPECT_EQ(losses_in(folder.path(std::string(name) + ".jsonl")),
              losses_in(folder.path("whole.jsonl")))
        << name;
    EXPECT_TRUE(testing::read_text(folder.path(std::string(name) + "/step-8/model.safetensors")) ==
                testing::read_text(folder.path("whole/step-8/model.safetensors")))
        << name;
  }
  fs::create_directory(folder.path("other"));
  fs::copy(folder.path("whole/step-5"), folder.path("other/step-5"));
  run(3, "other", 8);
  const auto before = weights_in(folder.path("whole/step-5"));
  const auto after = weights_in(folder.path("other/step-8"));
  for (const auto& [name, weight] : before) {
    if (!is_pruned_weight(name)) continue;
    EXPECT_EQ(zeros_of(after.at(name)), zeros_of(weight)) << name;
    for (std::size_t i = 0; i < weight.values.size(); ++i) {
      ASSERT_EQ(after.at(name).values[i] == 0, weight.values[i] == 0) << name << " " << i;
    }
  }
}

TEST(PrunedRun, RefusesWhatCannotBePruned) {
  const TrainingFolder folder;
  const auto refuse = [&](const Settings& settings, const std::string& text) {
    const Ended ended = run_program(train_arguments(folder.small() + settings));
    EXPECT_EQ(ended.code, 3) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
  };
  const Settings global = {{"train.prune.method", "global"}};
  refuse({{"train.prune.sparsity", "0.5"}}, "train.prune.method is missing");
  refuse(global + Settings{{"train.prune.begin", "3"}, {"train.prune.end", "2"}},
         "train.prune.end 2 is before train.prune.begin 3");
  refuse(global + Settings{{"train.prune.end", "4"}}, "is after the last step, train.steps 3");
  refuse(global + Settings{{"train.prune.modules", "none"}},
         "train.prune.modules \"none\" is the whole name of no linear layer");
  refuse(global + Settings{{"train.prune.modules", "("}}, "is not a regular expression");
  refuse(global + Settings{{"train.prune.sparsity", "1"}}, "below 1");
  refuse({{"train.prune.method", "2:4"}, {"train.prune.sparsity", "0.6"}}, "of 2:4 is 0.5");
  refuse({{"train.prune.method", "2:4"}, {"model.n_inner", "6"}}, "has 6 inputs");
  refuse({{"train.prune.method", "wanda_2:4"}, {"train.prune.sparsity", "0.6"}}, "of 2:4 is 0.5");
  refuse({{"train.prune.method", "wanda_2:4"}, {"model.n_inner", "6"}}, "has 6 inputs");
  refuse({{"train.prune.method", "wanda"}, {"train.prune.calibration_batches", "0"}}, "at least 1");
  refuse(global + Settings{{"train.prune.calibration_batches", "4"}},
         "train.prune.calibration_batches is for the methods wanda and wanda_2:4");
  refuse(global + Settings{{"model.lora.target_modules", "all-linear"}}, "is frozen");
}

// Otherwise weights that were pruned would be trained again.
TEST(PrunedRun, ARunThatWouldTrainPrunedWeightsDoesNotGoOn) {
  const TrainingFolder folder;
  const Settings common =
      folder.small() + Settings{{"checkpoint.dir", folder.path("run")}, {"train.steps", "2"}};
  const Settings method = {{"train.prune.method", "global"}};
  train(1, common + method);
  const auto refuse = [&](const Settings& settings, const std::string& text) {
    const Ended ended =
        run_program(train_arguments(common + Settings{{"train.steps", "5"}} + settings));
    EXPECT_EQ(ended.code, 3) << ended.err;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
  };
  refuse({}, "was trained with train.prune.method global, and this run has no train.prune.method");
  refuse({{"train.prune.method", "none"}},
         "in another checkpoint.dir, from its weights with model.pretrained: " +
             folder.path("run/step-2"));
  refuse(method + Settings{{"train.prune.begin", "4"}},
         "train.prune.begin 1, and this run has train.prune.begin 4");
  refuse(method + Settings{{"train.prune.modules", ".*c_fc"}},
         "no train.prune.modules, and this run has train.prune.modules .*c_fc");
  refuse({{"train.prune.method", "per_layer"}},
         "train.prune.method global, and this run has train.prune.method per_layer");
  refuse(method + Settings{{"train.prune.sparsity", "0.4"}},
         "train.prune.sparsity 0.5, and this run has train.prune.sparsity 0.4");
  refuse(method + Settings{{"train.prune.sparsity", "0.7"}},
         "train.prune.end 1 is not after the 2 steps of " + folder.path("run/step-2") +
             ": no more weights would be set to zero, and train.prune.sparsity 0.7 is not reached");
  const Ended same =
      train(1, common + Settings{{"train.steps", "3"}, {"train.prune.begin", "1"}} + method);
  EXPECT_EQ(same.err.find("was trained with"), std::string::npos) << same.err;
}

// A curve begins with a sparsity of 0.
TEST(PrunedRun, ARunWhoseCurveHasJustBegunMayGoOnWithout) {
  const TrainingFolder folder;
  const Settings common = folder.small() + Settings{{"checkpoint.dir", folder.path("run")},
                                                    {"train.prune.begin", "2"},
                                                    {"train.prune.end", "6"},
                                                    {"train.prune.every", "2"},
                                                    {"train.steps", "6"},
                                                    {"checkpoint.every", "2"}};
  train(1, common + Settings{{"train.prune.method", "global"}});
  std::filesystem::remove_all(folder.path("run/step-6"));
  const auto go_on = [&] {
    return run_program(train_arguments(common + Settings{{"train.prune.method", "none"}}));
  };
  const Ended pruned = go_on();
  EXPECT_EQ(pruned.code, 3) << pruned.err;
  std::filesystem::remove_all(folder.path("run/step-4"));
  const Ended dense = go_on();
  EXPECT_EQ(dense.code, 0) << dense.err;
  EXPECT_NE(dense.err.find("goes on with no train.prune.method"), std::string::npos) << dense.err;
}

TEST(PrunedRun, ARunThatPrunesMoreSaysSo) {
  const TrainingFolder folder;
  const std::string dir = folder.path("run");
  const Settings common =
      folder.small() +
      Settings{{"checkpoint.dir", dir}, {"train.prune.method", "global"}, {"train.steps", "2"}};
  train(1, common);
  const Ended more = train(1, common + Settings{{"train.steps", "4"},
                                                {"train.prune.sparsity", "0.75"},
                                                {"train.prune.end", "4"},
                                                {"checkpoint.every", "4"}});
  EXPECT_NE(more.err.find(dir + "/step-2 was trained with train.prune.end 1, train.prune.sparsity "
                                "0.5; this run goes on with train.prune.end 4, "
                                "train.prune.sparsity 0.75"),
            std::string::npos)
      << more.err;
  const auto [zeros, elements] = zeros_in(dir + "/step-4");
  EXPECT_EQ(zeros, elements / 4 * 3);
}

// Without the message it would prune nothing.
TEST(PrunedRun, BeginsInARunThatWasNotPrunedOnlyIfStepsAreLeft) {
  const TrainingFolder folder;
  const Settings common =
      folder.small() + Settings{{"checkpoint.dir", folder.path("run")}, {"train.steps", "2"}};
  train(1, common);
  const Settings method = {{"train.steps", "4"}, {"train.prune.method", "global"}};
  const Ended late = run_program(train_arguments(common + method));
  EXPECT_EQ(late.code, 3) << late.err;
  EXPECT_NE(late.err.find("train.prune.end 1 is not after the 2 steps of"), std::string::npos)
      << late.err;
  const Ended begins = train(1, common + method + Settings{{"train.prune.begin", "3"}});
  EXPECT_NE(begins.err.find("was trained with no train.prune.method; this run goes on with "
                            "train.prune.method global"),
            std::string::npos)
      << begins.err;
}

TEST(PrunedRun, MemoryIsThePlan) {
  const TrainingFolder folder;
  for (const auto& [method, begin] : std::vector<std::pair<std::string, std::string>>{
           {"global", "1"}, {"global", "3"}, {"wanda", "1"}, {"wanda", "3"}}) {
    const std::string report = folder.path("memory.json");
    train(2, folder.small() + Settings{{"log.memory", report},
                                       {"train.prune.method", method},
                                       {"train.prune.begin", begin}});
    const nlohmann::json log = nlohmann::json::parse(testing::read_text(report));
    EXPECT_EQ(log["planned"], log["measured"]) << method << begin;
  }
}

// An ignored module is not trained by default.
TEST(PrunedRun, FrozenLayersAreLeftAlone) {
  const TrainingFolder folder;
  const std::string dir = folder.path("run");
  train(2, folder.small() + Settings{{"train.prune.method", "global"},
                                     {"sharding.ignored_modules", "[transformer.h.0]"},
                                     {"checkpoint.dir", dir},
                                     {"checkpoint.every", "3"}});
  std::size_t zeros = 0, elements = 0;
  for (const auto& [name, weight] : weights_in(dir + "/step-3")) {
    if (!is_pruned_weight(name)) continue;
    if (name.find(".h.0.") != std::string::npos) {
      EXPECT_EQ(zeros_of(weight), 0u) << name;
    } else {
      zeros += zeros_of(weight);
      elements += weight.values.size();
    }
  }
  EXPECT_EQ(zeros, elements / 2);
}

// As the head of a language model.
TEST(PrunedRun, TheHeadOfClassesIsNotPruned) {
  const testing::SentenceFolder folder;
  const std::string dir = folder.path("run");
  testing::train_sentences(1, folder.small() + Settings{{"data.train", folder.classes()},
                                                        {"train.prune.method", "per_layer"},
                                                        {"checkpoint.dir", dir}});
  std::size_t heads = 0, pruned = 0;
  for (const auto& [name, weight] : weights_in(dir + "/step-4")) {
    if (weight.shape.size() != 2) continue;
    if (name.starts_with("classifier.")) {
      EXPECT_EQ(zeros_of(weight), 0u) << name;
      ++heads;
    } else if (zeros_of(weight) == weight.values.size() / 2) {
      ++pruned;
    }
  }
  EXPECT_EQ(heads, 1u);
  EXPECT_GE(pruned, 6u);
}

constexpr const char* with_experts =
    "architecture: mixtral, hidden_size: 64, intermediate_size: 32, num_hidden_layers: 1, "
    "num_attention_heads: 4, num_key_value_heads: 2, num_local_experts: 4, seq_len: 32";

TEST(PrunedRun, ExpertsAreNotLeftOutSilently) {
  const TrainingFolder folder;
  folder.write("experts.yaml", std::string("model: {") + with_experts +
                                   "}\ndata: {train: " + folder.path("text.txt") +
                                   ", tokenizer: bytes, batch_size: 2}\ntrain: {steps: 2}\n");
  const std::string recipe = folder.path("experts.yaml");
  const auto run = [&](const Settings& settings) {
    return run_program(train_arguments(settings, recipe));
  };
  const Ended pruned_whole = run({{"train.prune.method", "global"}});
  EXPECT_EQ(pruned_whole.code, 3);
  EXPECT_NE(pruned_whole.err.find("train.prune does not prune the matrices of experts"),
            std::string::npos)
      << pruned_whole.err;
  const Ended pruned_attention =
      run({{"train.prune.method", "global"}, {"train.prune.modules", ".*self_attn.*"}});
  EXPECT_EQ(pruned_attention.code, 0) << pruned_attention.err;
  const Ended rounded = run({{"model.quantize_aware", "q4_0"}});
  EXPECT_EQ(rounded.code, 3);
  EXPECT_NE(rounded.err.find("model.quantize_aware: the matrices of experts are not rounded"),
            std::string::npos)
      << rounded.err;
}

}  // namespace
}  // namespace tessera::training

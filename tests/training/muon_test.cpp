// Runs with train.optimizer: muon print the same digits under every strategy, also with experts,
// adapters, pruning and fp16, and after a resume under another one; and what recipes cannot have.
#include <algorithm>

#include "tests/training/strategies_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::losses_in;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

Settings muon(const TrainingFolder& folder, const Settings& more = {}) {
  return folder.small() + Settings{{"train.optimizer", "muon"}} + more;
}

TEST(MuonRun, EveryStrategyPrintsTheSameBits) {
  testing::expect_equal_bits(2, {1, 2},
                             {{"train.optimizer", "muon"},
                              {"train.muon.adamw_lr", "1.0e-3"},
                              {"train.gradient_accumulation_steps", "2"},
                              {"sharding.mixed_precision", "bf16"}});
}

// The same digits as NO_SHARD's with three ranks and features that touch parameters or gradients.
TEST(MuonRun, GoesWithOtherFeatures) {
  const TrainingFolder folder;
  const std::string base = folder.path("base");
  train(1, folder.small() + Settings{{"checkpoint.dir", base}, {"checkpoint.every", "3"}});
  const std::vector<Settings> features = {
      {{"sharding.mixed_precision", "fp16"}, {"sharding.keep_fp32", "LayerNorm"}},
      {{"train.prune.method", "per_layer"},
       {"train.prune.begin", "1"},
       {"train.prune.end", "2"},
       {"train.prune.every", "1"}},
      {{"model.pretrained", base + "/step-3"},
       {"model.lora.target_modules", "[c_attn, c_proj]"},
       {"train.muon.products", "fp32"}},
      {{"sharding.ignored_modules", "[transformer.h.0]"}, {"train.muon.adjust_lr", "original"}}};
  for (const Settings& feature : features) {
    std::vector<std::string> expected;
    for (const char* strategy : {"NO_SHARD", "FULL_SHARD"}) {
      const std::string jsonl = folder.path("metrics.jsonl");
      fs::remove(jsonl);
      Settings settings = muon(folder, feature + Settings{{"sharding.sharding_strategy", strategy},
                                                          {"log.jsonl", jsonl}});
      if (feature.contains("model.pretrained")) {
        for (const char* key : {"model.n_layer", "model.n_embd", "model.n_head"})
          settings.insert_or_assign(key, "null");
      }
      train(3, settings);
      const auto lines = losses_in(jsonl);
      ASSERT_EQ(lines.size(), 3u);
      if (expected.empty()) expected = lines;
      EXPECT_EQ(lines, expected) << nlohmann::json(feature).dump() << strategy;
    }
  }
}

// Its moments are logical tensors: they fit any strategy, and another optimizer is refused.
TEST(MuonRun, ResumesUnderAnotherStrategy) {
  const TrainingFolder folder;
  const auto into = [&](const std::string& name, int steps, const char* strategy) {
    return muon(folder, {{"train.steps", std::to_string(steps)},
                         {"checkpoint.dir", folder.path(name)},
                         {"checkpoint.every", "2"},
                         {"checkpoint.state_dict_type", "SHARDED_STATE_DICT"},
                         {"log.jsonl", folder.path(name + ".jsonl")},
                         {"sharding.sharding_strategy", strategy}});
  };
  train(2, into("whole", 5, "FULL_SHARD"));
  train(2, into("parts", 2, "FULL_SHARD"));
  train(2, into("parts", 4, "NO_SHARD"));
  train(2, into("parts", 5, "SHARD_GRAD_OP"));
  EXPECT_EQ(losses_in(folder.path("parts.jsonl")), losses_in(folder.path("whole.jsonl")));
  const Ended listed = run_program({"inspect", folder.path("parts/step-5")});
  EXPECT_NE(listed.out.find("transformer.h.0.attn.c_attn.weight.momentum"), std::string::npos);
  EXPECT_EQ(listed.out.find("transformer.h.0.attn.c_attn.weight.exp_avg"), std::string::npos);
  EXPECT_NE(listed.out.find("transformer.wte.weight.exp_avg_sq"), std::string::npos);
  const Ended refused = run_program(testing::train_arguments(
      into("parts", 7, "FULL_SHARD") + Settings{{"train.optimizer", "adamw"}}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("train.optimizer muon"), std::string::npos) << refused.err;
}

TEST(MuonRun, RecipesAreRefused) {
  const TrainingFolder folder;
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"train.optimizer", "adamw"}, {"train.muon.momentum", "0.9"}},
       "train.muon.momentum is for train.optimizer: muon"},
      {{{"train.optimizer", "adamw"}, {"train.muon.products", "fp32"}},
       "train.muon.products is for train.optimizer: muon"},
      {{{"train.muon.momentum", "1"}}, "train.muon.momentum"},
      {{{"train.muon.ns_steps", "0"}}, "train.muon.ns_steps"},
      {{{"train.muon.ns_steps", "100"}}, "train.muon.ns_steps"},
      {{{"train.muon.products", "fp16"}}, "train.muon.products"},
      {{{"train.muon.adjust_lr", "spectral"}}, "train.muon.adjust_lr"},
      {{{"train.momentum", "0.9"}}, "train.muon.momentum"},
      {{{"sharding.offload.optimizer", "file"}, {"sharding.offload.folder", folder.path("f")}},
       "train.optimizer muon keeps parameters, gradients and moments in memory"},
      {{{"train.muon.adamw_lr", "1e-3"},
        {"train.parameter_groups", "[{pattern: '.*bias', lr: 1.0e-4}]"}},
       "train.muon.adamw_lr and an lr in train.parameter_groups exclude each other"},
  };
  for (const auto& [settings, text] : cases) {
    std::vector<std::string> arguments = testing::train_arguments(muon(folder, settings));
    arguments.front() = "recipe";
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, 3) << text;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

}  // namespace
}  // namespace tessera::training

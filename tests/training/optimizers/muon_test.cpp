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

// The lines of a run of three ranks.
std::vector<std::string> lines_of(const TrainingFolder& folder, const Settings& settings,
                                  const std::string& recipe) {
  const std::string jsonl = folder.path("lines.jsonl");
  fs::remove(jsonl);
  const auto arguments = testing::train_arguments(
      settings + Settings{{"train.optimizer", "muon"}, {"log.jsonl", jsonl}}, recipe);
  const Ended ended = run_program(testing::launched(3, arguments));
  EXPECT_EQ(ended.code, 0) << ended.err;
  return losses_in(jsonl);
}

void expect_same_lines(const TrainingFolder& folder, const Settings& settings,
                       const std::string& recipe = testing::example_recipe()) {
  const Settings whole{{"sharding.sharding_strategy", "NO_SHARD"}};
  const auto lines = lines_of(folder, settings, recipe);
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines, lines_of(folder, settings + whole, recipe)) << nlohmann::json(settings).dump();
}

TEST(MuonRun, GoesWithFeaturesThatTouchParametersOrGradients) {
  const TrainingFolder folder;
  expect_same_lines(folder, folder.small() + Settings{{"sharding.mixed_precision", "fp16"},
                                                      {"sharding.keep_fp32", "LayerNorm"}});
  expect_same_lines(folder, folder.small() + Settings{{"train.prune.method", "per_layer"},
                                                      {"train.prune.begin", "1"},
                                                      {"train.prune.end", "2"},
                                                      {"train.prune.every", "1"}});
  expect_same_lines(folder,
                    folder.small() + Settings{{"sharding.ignored_modules", "[transformer.h.0]"},
                                              {"train.muon.adjust_lr", "original"}});
}

// Both matrices of an adapter are Muon's.
TEST(MuonRun, TrainsAdapters) {
  const TrainingFolder folder;
  const std::string base = folder.path("base");
  train(1, folder.small() + Settings{{"checkpoint.dir", base}, {"checkpoint.every", "3"}});
  expect_same_lines(folder,
                    {{"model.pretrained", base + "/step-3"},
                     {"model.seq_len", "64"},
                     {"data.train", folder.path("text.txt")},
                     {"data.batch_size", "2"},
                     {"train.steps", "3"},
                     {"train.lr_decay_steps", "50"},
                     {"train.muon.products", "fp32"},
                     {"checkpoint.dir", "null"},
                     {"checkpoint.every", "0"}},
                    fs::path(testing::example_recipe()).replace_filename("lora.yaml").string());
}

TEST(MuonRun, TrainsExperts) {
  const TrainingFolder folder;
  folder.write("experts.yaml",
               "model: {architecture: mixtral, hidden_size: 40, num_hidden_layers: 2, "
               "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 21, "
               "num_local_experts: 5, seq_len: 32}\n"
               "data: {train: " +
                   folder.path("text.txt") +
                   ", tokenizer: bytes, batch_size: 2}\n"
                   "train: {steps: 3, lr: 3.0e-3, lr_decay_steps: 50}\n");
  expect_same_lines(folder, {}, folder.path("experts.yaml"));
}

// Its moments are logical tensors: they fit any strategy, and another optimizer is refused.
TEST(MuonRun, ResumesUnderAnotherStrategy) {
  const TrainingFolder folder;
  const Settings own{{"train.optimizer", "muon"}};
  testing::expect_resumes_elsewhere(folder, own);
  const Ended listed = run_program({"inspect", folder.path("parts/step-5")});
  EXPECT_NE(listed.out.find("transformer.h.0.attn.c_attn.weight.momentum"), std::string::npos);
  EXPECT_EQ(listed.out.find("transformer.h.0.attn.c_attn.weight.exp_avg"), std::string::npos);
  EXPECT_NE(listed.out.find("transformer.wte.weight.exp_avg_sq"), std::string::npos);
  const Ended refused =
      run_program(testing::train_arguments(testing::saving_into(folder, "parts", 7, "FULL_SHARD") +
                                           Settings{{"train.optimizer", "adamw"}}));
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

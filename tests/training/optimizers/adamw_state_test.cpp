// Runs with 8-bit moments and with bf16 moments print the same digits under every strategy, and
// after a resume under another one; and what recipes cannot have.
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

const Settings eight_bit{{"train.optimizer", "adamw8bit"}, {"train.adamw8bit.min_size", "512"}};
const Settings rounded{{"train.adamw.state_dtype", "bf16"}};

TEST(AdamWStateRun, EveryStrategyPrintsTheSameBits) {
  testing::expect_equal_bits(2, {1, 2}, eight_bit + Settings{{"sharding.mixed_precision", "bf16"}});
  testing::expect_equal_bits(2, {1, 2}, rounded + Settings{{"sharding.mixed_precision", "bf16"}});
}

TEST(AdamWStateRun, ResumesUnderAnotherStrategy) {
  for (const Settings& settings : {eight_bit, rounded})
    testing::expect_resumes_elsewhere(TrainingFolder(), settings);
}

// The dtype and the seed of the recipe reach the kernel: nothing else in this run depends on the
// seed, as the losses with fp32 moments show.
TEST(AdamWStateRun, RoundedMomentsDependOnTheSeed) {
  const TrainingFolder folder;
  train(1,
        folder.small() + Settings{{"train.steps", "1"}, {"checkpoint.dir", folder.path("begin")}});
  folder.write("recipe.yaml", "model: {pretrained: " + folder.path("begin/step-1") +
                                  ", seq_len: 64}\ndata: {train: " + folder.path("text.txt") +
                                  ", batch_size: 2, shuffle: false}\n"
                                  "train: {steps: 6, lr: 1.0e-3}\n");
  const auto losses = [&](const std::string& seed, const Settings& more) {
    const std::string log = folder.path("losses.jsonl");
    fs::remove(log);
    const Ended ended = run_program(testing::train_arguments(
        Settings{{"train.seed", seed}, {"log.jsonl", log}} + more, folder.path("recipe.yaml")));
    EXPECT_EQ(ended.code, 0) << ended.err;
    return losses_in(log);
  };
  EXPECT_EQ(losses("1", {}), losses("0", {}));
  const auto once = losses("0", rounded);
  EXPECT_NE(once, losses("0", {}));
  EXPECT_EQ(losses("0", rounded), once);
  EXPECT_NE(losses("1", rounded), once);
}

TEST(AdamWStateRun, ConvertsItsMoments) {
  const TrainingFolder folder;
  const auto into = [&](const std::string& name, const std::string& optimizer, int steps) {
    return folder.small() + Settings{{"train.optimizer", optimizer},
                                     {"train.steps", std::to_string(steps)},
                                     {"checkpoint.dir", folder.path(name)},
                                     {"checkpoint.every", "2"}};
  };
  train(1, into("wide", "adamw", 2));
  const Ended converted = run_program({"convert", folder.path("wide"), folder.path("narrow/step-2"),
                                       "--to", "full", "--moments", "8bit"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  Settings resumed = into("narrow", "adamw8bit", 4);
  resumed["log.jsonl"] = folder.path("narrow.jsonl");
  train(1, resumed);
  EXPECT_EQ(losses_in(folder.path("narrow.jsonl")).size(), 2u);  // steps 3 and 4
  const Ended listed = run_program({"inspect", folder.path("narrow/step-4")});
  EXPECT_NE(listed.out.find("exp_avg_sq_8bit"), std::string::npos) << listed.out;
  const Ended wrong = run_program(
      {"convert", folder.path("wide"), folder.path("none"), "--to", "full", "--moments", "4bit"});
  EXPECT_EQ(wrong.code, 2) << wrong.err;
  EXPECT_FALSE(fs::exists(folder.path("none")));
}

TEST(AdamWStateRun, RecipesAreRefused) {
  const TrainingFolder folder;
  const Settings offload{{"sharding.offload.optimizer", "file"},
                         {"sharding.offload.folder", folder.path("f")}};
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"train.optimizer", "lion"}, {"train.adamw.state_dtype", "bf16"}},
       "train.adamw.state_dtype is for train.optimizer: adamw"},
      {{{"train.adamw8bit.min_size", "1"}},
       "train.adamw8bit.min_size is for train.optimizer: adamw8bit"},
      {{{"train.adamw.state_dtype", "fp16"}}, "train.adamw.state_dtype"},
      {eight_bit + Settings{{"train.adamw8bit.min_size", "-1"}}, "train.adamw8bit.min_size"},
      {eight_bit + offload,
       "train.optimizer adamw8bit keeps parameters, gradients and moments in memory"},
      {rounded + offload,
       "train.adamw.state_dtype bf16 keeps parameters, gradients and moments in memory"},
  };
  for (const auto& [settings, text] : cases) {
    std::vector<std::string> arguments = testing::train_arguments(folder.small() + settings);
    arguments.front() = "recipe";
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, 3) << text;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

}  // namespace
}  // namespace tessera::training

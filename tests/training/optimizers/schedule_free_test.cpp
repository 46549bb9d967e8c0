// Runs with train.optimizer: schedule_free_adamw print the same digits under every strategy, with
// any evaluations and saves, and after a resume under another one; their checkpoints and exports
// have the weights that were evaluated; and what recipes cannot have.
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

Settings averaged(const TrainingFolder& folder, const Settings& more = {}) {
  return folder.small() +
         Settings{{"train.optimizer", "schedule_free_adamw"},
                  {"train.lr", "5.0e-3"},
                  {"train.lr_schedule", "constant"},
                  {"train.lr_decay_steps", "null"}} +
         more;
}

TEST(ScheduleFreeRun, EveryStrategyPrintsTheSameBits) {
  testing::expect_equal_bits(
      2, {1, 2},
      {{"train.optimizer", "schedule_free_adamw"},
       {"train.lr", "5.0e-3"},
       {"train.lr_schedule", "constant"},
       {"train.gradient_accumulation_steps", "2"},
       {"train.parameter_groups", "[{pattern: '.*ln.*', lr: 1.0e-3, weight_decay: 0}]"},
       {"sharding.mixed_precision", "bf16"}});
}

// With and without evaluations, saves and resumes.
TEST(ScheduleFreeRun, EvaluationsSavesAndResumesChangeNoBit) {
  const TrainingFolder folder;
  const auto into = [&](const std::string& name, int steps, const Settings& more) {
    return averaged(folder, {{"train.steps", std::to_string(steps)},
                             {"data.valid", folder.path("text.txt")},
                             {"train.eval_batches", "2"},
                             {"checkpoint.dir", folder.path(name)},
                             {"checkpoint.every", "100"},
                             {"sharding.mixed_precision", "bf16"},
                             {"log.jsonl", folder.path(name + ".jsonl")}}) +
           more;
  };
  train(2, into("straight", 6, {}));
  const Settings often{{"train.eval_every", "1"}, {"checkpoint.every", "1"}};
  const Settings sharded{{"checkpoint.state_dict_type", "SHARDED_STATE_DICT"},
                         {"checkpoint.async", "true"}};
  train(2, into("often", 6, often + sharded));
  train(2, into("parts", 2, often));
  testing::train_on(
      2, into("parts", 4, often + sharded + Settings{{"sharding.sharding_strategy", "NO_SHARD"}}));
  testing::train_on(2, into("parts", 6, Settings{{"sharding.sharding_strategy", "SHARD_GRAD_OP"}}));
  const auto expected = losses_in(folder.path("straight.jsonl"));
  EXPECT_EQ(expected.size(), 6u);
  EXPECT_EQ(losses_in(folder.path("often.jsonl")), expected);
  EXPECT_EQ(losses_in(folder.path("parts.jsonl")), expected);
}

double last_valid_loss(const std::string& jsonl) {
  double found = 0;
  for (const nlohmann::json& line : testing::metrics_in(jsonl)) {
    if (line.contains("valid_loss")) found = line.at("valid_loss");
  }
  EXPECT_GT(found, 0);
  return found;
}

// A step of rate 0 from the weights of the checkpoint, and of the export, evaluates to the loss
// that the run printed.
TEST(ScheduleFreeRun, SavesTheWeightsThatItEvaluated) {
  const TrainingFolder folder;
  train(2, averaged(folder, {{"data.valid", folder.path("text.txt")},
                             {"train.eval_batches", "2"},
                             {"checkpoint.dir", folder.path("out")},
                             {"checkpoint.every", "3"},
                             {"checkpoint.export", folder.path("export")},
                             {"log.jsonl", folder.path("run.jsonl")}}));
  const double logged = last_valid_loss(folder.path("run.jsonl"));
  for (const std::string name : {"out/step-3", "export"}) {
    const std::string jsonl = folder.path("again.jsonl");
    fs::remove(jsonl);
    folder.write("again.yaml", "model: {pretrained: " + folder.path(name) +
                                   ", seq_len: 64}\ndata: {train: " + folder.path("text.txt") +
                                   ", valid: " + folder.path("text.txt") +
                                   ", tokenizer: bytes, batch_size: 2}\ntrain: {steps: 1, lr: 0, "
                                   "eval_batches: 2}\nlog: {jsonl: " +
                                   jsonl + "}\n");
    const Ended ended =
        run_program(testing::launched(2, testing::train_arguments({}, folder.path("again.yaml"))));
    ASSERT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(last_valid_loss(jsonl), logged) << name;
  }
}

TEST(ScheduleFreeRun, RecipesAreRefused) {
  const TrainingFolder folder;
  const std::vector<std::pair<Settings, std::string>> cases = {
      {{{"sharding.offload.optimizer", "file"}, {"sharding.offload.folder", folder.path("f")}},
       "train.optimizer schedule_free_adamw keeps parameters, gradients and moments in memory"},
      {{{"train.prune.method", "global"}},
       "train.prune.method sets weights to zero, and schedule_free_adamw saves an average"},
      {{{"train.betas", "[1, 0.9]"}}, "train.betas"},
      {{{"train.optimizer", "AdamWScheduleFree"}}, "it is schedule_free_adamw here"},
  };
  for (const auto& [settings, text] : cases) {
    std::vector<std::string> arguments = testing::train_arguments(averaged(folder, settings));
    arguments.front() = "recipe";
    const Ended ended = run_program(arguments);
    EXPECT_EQ(ended.code, 3) << text;
    EXPECT_NE(ended.err.find(text), std::string::npos) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

}  // namespace
}  // namespace tessera::training

// Messages of `tessera train`: nothing is left to do, nothing was saved, the model that it uses,
// and why it cannot resume from a step.
#include "base/error.h"
#include "tests/cli/training_testing.h"
#include "training/recipe_difference.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::launched;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

bool says(const Ended& ended, const std::string& text) {
  return ended.err.find(text) != std::string::npos;
}

TEST(RunWords, AFinishedRunThatIsStartedAgainReportsIt) {
  const TrainingFolder folder;
  const Settings settings = folder.small() + Settings{{"checkpoint.dir", folder.path("saves")}};
  const std::string nothing_left = "nothing is left to train; raise train.steps to go on";
  EXPECT_FALSE(says(train(2, settings), nothing_left));
  const Ended again = train(2, settings);
  EXPECT_TRUE(
      says(again, folder.path("saves/step-3") + " has all 3 steps of train.steps: " + nothing_left))
      << again.err;
  const Ended fewer = train(1, settings + Settings{{"train.steps", "2"}, {"data.batch_size", "4"}});
  EXPECT_TRUE(says(fewer, "step-3 has 3 steps, and train.steps is 2: " + nothing_left))
      << fewer.err;
  const Ended none =
      train(1, folder.small() + Settings{{"train.steps", "0"}, {"train.warmup_steps", "0"}});
  EXPECT_TRUE(says(none, "train.steps is 0: there is nothing to train")) << none.err;
  EXPECT_FALSE(says(none, "nothing saved"));
}

TEST(RunWords, ARunWithoutAFolderReportsThatNothingWasSaved) {
  const TrainingFolder folder;
  const std::string nothing_saved = "nothing saved: neither checkpoint.dir nor";
  EXPECT_TRUE(says(train(2, folder.small()), nothing_saved));
  EXPECT_FALSE(says(train(1, folder.small() + Settings{{"checkpoint.dir", folder.path("saves")}}),
                    nothing_saved));
  EXPECT_FALSE(says(train(1, folder.small() + Settings{{"checkpoint.export", folder.path("out")}}),
                    nothing_saved));
  EXPECT_TRUE(says(train(1, folder.small() + Settings{{"checkpoint.dir", folder.path("never")},
                                                      {"checkpoint.every", "0"}}),
                   "nothing saved: checkpoint.every is 0, and checkpoint.export is not set"));
}

// A step from the weights in that folder.
Ended tune(const TrainingFolder& folder, const std::string& pretrained, int ranks = 2) {
  folder.write("tune.yaml", "model: {pretrained: " + pretrained + ", seq_len: 64}\ndata: {train: " +
                                folder.path("text.txt") + ", batch_size: 2}\ntrain: {steps: 1}\n");
  return run_program(launched(ranks, {"train", folder.path("tune.yaml")}));
}

TEST(PretrainedFolder, OfStepsIsTheNewestCompleteOne) {
  const TrainingFolder folder;
  train(2, folder.small() +
               Settings{{"checkpoint.dir", folder.path("saves")}, {"checkpoint.every", "1"}});
  const Ended newest = tune(folder, folder.path("saves"));
  EXPECT_EQ(newest.code, 0) << newest.err;
  EXPECT_TRUE(says(newest, "weights from " + folder.path("saves/step-3"))) << newest.err;
  const Ended planned = run_program({"plan", folder.path("tune.yaml"), "--device-memory", "1TB"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  testing::damage(folder.path("saves/step-3/model.safetensors"), 100'000);
  const Ended older = tune(folder, folder.path("saves"), 1);
  EXPECT_EQ(older.code, 0) << older.err;
  EXPECT_TRUE(says(older, "weights from " + folder.path("saves/step-2"))) << older.err;
  EXPECT_TRUE(says(older, "passed over step-3")) << older.err;
}

TEST(PretrainedFolder, WhoseLastRunIsDamagedNamesTheOtherRunAndTheWay) {
  const TrainingFolder folder;
  const Settings saves = {{"checkpoint.dir", folder.path("saves")}};
  train(1, folder.small() + saves);
  train(1, folder.small() + saves + Settings{{"checkpoint.resume", "never"}, {"train.steps", "2"}});
  testing::damage(folder.path("saves/step-2/model.safetensors"), 100'000);
  const Ended ended = tune(folder, folder.path("saves"));
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_TRUE(says(ended, "no checkpoint in '" + folder.path("saves") +
                              "' of the run that was saved last is intact: step-2"))
      << ended.err;
  EXPECT_TRUE(says(ended, "of another run")) << ended.err;
  EXPECT_TRUE(says(ended, "or name a step of another run with model.pretrained=PATH")) << ended.err;
  const Ended whole = tune(folder, folder.path("saves/step-3"));
  EXPECT_EQ(whole.code, 0) << whole.err;
}

TEST(PretrainedFolder, WithAnArchitectureThatIsNotItsOwnIsRefused) {
  const TrainingFolder folder;
  train(1, folder.small() + Settings{{"checkpoint.export", folder.path("model")}});
  for (const char* architecture : {"gpt2", "llama"}) {
    folder.write("a.yaml", "model: {architecture: " + std::string(architecture) +
                               ", pretrained: " + folder.path("model") +
                               ", seq_len: 64}\ndata: {train: " + folder.path("text.txt") +
                               "}\ntrain: {steps: 1}\n");
    const Ended ended = run_program({"train", folder.path("a.yaml")});
    const bool same = std::string(architecture) == "gpt2";
    EXPECT_EQ(ended.code, same ? 0 : 3) << ended.err;
    EXPECT_EQ(says(ended,
                   "a.yaml:1: model.architecture is llama, and the config.json of "
                   "model.pretrained"),
              !same)
        << ended.err;
  }
}

TEST(PretrainedFolder, OfTheHubIsAnsweredWithTheWayToDownloadIt) {
  const TrainingFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"gpt2",
       "gpt2: no such folder; nothing is downloaded here: hf download gpt2 --local-dir gpt2"},
      {"some-org/a.model_1", "hf download some-org/a.model_1 --local-dir a.model_1"},
      {folder.path("nothing"), folder.path("nothing") + ": no such folder"},
      {folder.path("text.txt"), "no such folder, but a file"},
  };
  for (const auto& [name, message] : cases) {
    const Ended ended = tune(folder, name);
    EXPECT_EQ(ended.code, 5) << ended.err;
    EXPECT_TRUE(says(ended, "tune.yaml:1: model.pretrained: ")) << ended.err;
    EXPECT_TRUE(says(ended, message)) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  EXPECT_FALSE(says(tune(folder, folder.path("nothing")), "hf download"));
}

Recipe recipe_of(const std::string& text) {
  return parse_recipe("data: {train: x}\n" + text, "r.yaml", {});
}

std::vector<std::string> keys_that_differ(const std::string& saved, const std::string& own) {
  const auto config = [](const Recipe& recipe) { return recipe.model.config; };
  const Recipe before = recipe_of(saved), now = recipe_of(own);
  std::vector<std::string> keys;
  for (const RecipeDifference& difference :
       decisive_differences({to_json(before), config(before)}, now, config(now))) {
    keys.push_back(difference.key + " " + difference.saved + " " + difference.own);
  }
  return keys;
}

using Keys = std::vector<std::string>;

TEST(RecipeDifferences, AreInKeysThatDecideTheTensorsAndTheModel) {
  EXPECT_EQ(keys_that_differ("", ""), Keys());
  EXPECT_EQ(keys_that_differ("model: {n_layer: 6}", "model: {n_layer: 4}"),
            Keys{"model.n_layer 6 4"});
  EXPECT_EQ(keys_that_differ("model: {seq_len: 64}", "model: {seq_len: 32}"),
            Keys{"model.seq_len 64 32"});
  EXPECT_EQ(keys_that_differ("model: {seq_len: 64}", "model: {n_positions: 512}"),
            Keys{"model.n_positions 64 512"});
  EXPECT_EQ(keys_that_differ("model: {architecture: llama}", ""),
            Keys{"model.architecture llama gpt2"});
  EXPECT_EQ(keys_that_differ("train: {optimizer: sgd, momentum: 0.9}", "train: {optimizer: sgd}"),
            Keys{"train.momentum 0.9 0.0"});
  const std::string targets = "model: {lora: {target_modules: [c_attn], ";
  EXPECT_EQ(keys_that_differ(targets + "r: 4}}", targets + "dropout: 0.1}}"),
            Keys{"model.lora.r 4 8"});
  EXPECT_EQ(keys_that_differ(targets + "alpha: 16}}", ""),
            Keys{"model.lora.target_modules [\"c_attn\"] "});
}

// The keys of train.prune that may differ, and those that may not, after so many steps.
std::pair<Keys, Keys> pruning_differences(const std::string& saved, const std::string& own,
                                          std::int64_t steps) {
  const std::string train = "train: {steps: 50, prune: {method: ";
  const Recipe before = recipe_of(train + saved + "}}"), now = recipe_of(train + own + "}}");
  const nlohmann::json config = now.model.config;
  const SavedRecipe step{to_json(before), config, "step", false, steps};
  const auto texts = [](const std::vector<RecipeDifference>& differences) {
    Keys keys;
    for (const RecipeDifference& one : differences)
      keys.push_back(one.key + " " + one.saved + " " + one.own);
    return keys;
  };
  const auto decisive = decisive_differences(step, now, config);
  return {decisive.empty() ? texts(allowed_changes(step, now)) : Keys(), texts(decisive)};
}

TEST(RecipeDifferences, InPruningDecideFromItsBeginOn) {
  const std::string saved = "global, begin: 10, end: 20, every: 5";
  const auto expect = [&](const std::string& own, std::int64_t steps, const Keys& accepted,
                          const Keys& refused) {
    const auto found = pruning_differences(saved, own, steps);
    EXPECT_EQ(found.first, accepted) << own << steps;
    EXPECT_EQ(found.second, refused) << own << steps;
  };
  expect("global, begin: 10, end: 20, sparsity: 0.5, every: 5", 15, {}, {});
  expect("global, begin: 10, end: 30, every: 4", 15,
         {"train.prune.end 20 30", "train.prune.every 5 4"}, {});
  expect("global, begin: 10, end: 20, every: 5, sparsity: 0.4", 15, {},
         {"train.prune.sparsity 0.5 0.4"});
  expect("wanda, begin: 10, end: 20, every: 5", 15, {}, {"train.prune.method global wanda"});
  // The curve begins with a sparsity of 0.
  expect("wanda, begin: 10, end: 20, every: 5", 14, {"train.prune.method global wanda"}, {});
  expect("wanda, begin: 12, end: 20, every: 5, sparsity: 0.4", 9,
         {"train.prune.begin 10 12", "train.prune.method global wanda",
          "train.prune.sparsity 0.5 0.4"},
         {});
  EXPECT_THROW(pruning_differences(saved, "global, begin: 10, end: 15", 15), Error);
  EXPECT_THROW(pruning_differences(saved, "global, begin: 10, end: 20, sparsity: 0.6", 20), Error);
}

// The folder may have moved, or hold other weights.
TEST(RecipeDifferences, InTheBaseOfAnAdapterAreNoted) {
  const std::string lora = "model: {lora: {target_modules: [c_attn]}}";
  Recipe before = recipe_of(lora), now = recipe_of(lora);
  before.model.pretrained = "one";
  now.model.pretrained = "another";
  const SavedRecipe step{to_json(before), now.model.config, "step", false, 3};
  const auto noted = allowed_changes(step, now);
  ASSERT_EQ(noted.size(), 1u);
  EXPECT_EQ(texts_of(noted).first, "model.pretrained one");
  EXPECT_EQ(texts_of(noted).second, "model.pretrained another");
  EXPECT_TRUE(allowed_changes(step, before).empty());
  // All weights of a model come from the step.
  Recipe whole = recipe_of("");
  whole.model.pretrained = "another";
  EXPECT_TRUE(allowed_changes(step, whole).empty());
}

TEST(RecipeDifferences, AreNotInKeysThatMayChange) {
  EXPECT_EQ(keys_that_differ("model: {dropout: 0.1, initializer_range: 0.1}\n"
                             "train: {lr: 1.0e-4, steps: 5, weight_decay: 0}\n"
                             "sharding: {mixed_precision: bf16, sharding_strategy: NO_SHARD}",
                             "train: {seed: 4}"),
            Keys());
  EXPECT_EQ(keys_that_differ("train: {optimizer: sgd, momentum: 0.9}",
                             "train: {optimizer: sgd, momentum: 0.5}"),
            Keys());
  // A step without a recipe is compared by its tensors only.
  EXPECT_TRUE(
      decisive_differences({nullptr, nullptr}, recipe_of(""), {{"model_type", "gpt2"}}).empty());
}

}  // namespace
}  // namespace tessera::training

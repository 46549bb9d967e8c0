// Interrupted and resumed runs print the same digits as an uninterrupted one.
#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::damage;
using testing::Ended;
using testing::expect_close;
using testing::launched;
using testing::losses_in;
using testing::Program;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

// A run that is difficult to resume: dropout, bf16 with fp32 masters, micro-batches, a schedule,
// batches that begin in one epoch and end in the next (14 sequences, 8 per step).
Settings hard(const TrainingFolder& folder) {
  folder.write("few.txt", testing::sample_text(14 * 64 + 1));
  return folder.small() + Settings{{"data.train", folder.path("few.txt")},
                                   {"model.dropout", "0.1"},
                                   {"sharding.mixed_precision", "bf16"},
                                   {"train.gradient_accumulation_steps", "2"}};
}

Settings into(const TrainingFolder& folder, const std::string& name, int steps, int every) {
  return {{"train.steps", std::to_string(steps)},
          {"log.jsonl", folder.path(name + ".jsonl")},
          {"checkpoint.dir", folder.path(name)},
          {"checkpoint.every", std::to_string(every)}};
}

Settings without_checkpoints(const TrainingFolder& folder, int steps) {
  return {{"train.steps", std::to_string(steps)}, {"log.jsonl", folder.path("whole.jsonl")}};
}

TEST(Resume, BothKindsOfCheckpointsResumeWithTheSameBits) {
  const TrainingFolder folder;
  train(2, hard(folder) + without_checkpoints(folder, 7));
  const auto whole = losses_in(folder.path("whole.jsonl"));
  ASSERT_EQ(whole.size(), 7u);
  for (const std::string type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const Settings kind = hard(folder) + Settings{{"checkpoint.state_dict_type", type}};
    train(2, kind + into(folder, type, 5, 2));
    const Ended resumed = train(2, kind + into(folder, type, 7, 2));
    EXPECT_NE(resumed.err.find("resumed from " + folder.path(type + "/step-5")), std::string::npos)
        << resumed.err;
    EXPECT_EQ(losses_in(folder.path(type + ".jsonl")), whole) << type;
    // A crash after step 5: its line is already written, and the steps after 4 are repeated.
    for (const char* step : {"/step-5", "/step-6", "/step-7"}) {
      fs::remove_all(folder.path(type + step));
    }
    train(2, kind + into(folder, type, 7, 100));
    EXPECT_EQ(losses_in(folder.path(type + ".jsonl")), whole) << type;
  }
}

// 16 sequences and 8 per step: step 2 ends the first epoch, and step 4 the second.
TEST(Resume, AtTheEndOfAnEpochBeginsTheNext) {
  const TrainingFolder folder;
  Settings settings = hard(folder);
  folder.write("even.txt", testing::sample_text(16 * 64 + 1));
  settings["data.train"] = folder.path("even.txt");
  train(2, settings + without_checkpoints(folder, 5));
  for (const int steps : {2, 4, 5}) train(2, settings + into(folder, "parts", steps, 100));
  const auto losses = losses_in(folder.path("parts.jsonl"));
  EXPECT_EQ(losses.size(), 5u);
  EXPECT_EQ(losses, losses_in(folder.path("whole.jsonl")));
}

TEST(Resume, AfterASignalThatSavesFirst) {
  const TrainingFolder folder;
  const Settings settings = hard(folder);
  Program program(
      launched(2, train_arguments(settings + into(folder, "stopped", 1'000'000, 1'000'000))));
  const std::string jsonl = folder.path("stopped.jsonl");
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(jsonl) >= 3; })) << program.err();
  program.signal(SIGTERM);
  ASSERT_EQ(program.wait(), 128 + SIGTERM) << program.err();
  const int done = testing::lines_of(jsonl);
  const std::string step = std::to_string(done);
  EXPECT_NE(program.err().find("stopped by signal 15 after saving step " + step), std::string::npos)
      << program.err();
  EXPECT_EQ(program.err().find("error"), std::string::npos) << program.err();
  EXPECT_TRUE(fs::exists(folder.path("stopped/step-" + step + "/manifest.json")));
  train(2, settings + into(folder, "stopped", done + 3, 1'000'000));
  train(2, settings + without_checkpoints(folder, done + 3));
  EXPECT_EQ(losses_in(jsonl), losses_in(folder.path("whole.jsonl")));
}

TEST(Resume, AfterARankWasKilledTheLauncherRestartsByItself) {
  const TrainingFolder folder;
  const Settings settings = hard(folder);
  const int steps = 100;
  Program program(launched(2, train_arguments(settings + into(folder, "killed", steps, 5)),
                           {"--max-restarts", "1"}));
  ASSERT_TRUE(testing::eventually([&] {
    return testing::lines_of(folder.path("killed.jsonl")) >= 7;
  })) << program.err();
  const pid_t rank = testing::pid_of_rank(program.pid(), 1);
  ASSERT_GT(rank, 0);
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  EXPECT_EQ(program.wait(std::chrono::minutes(2)), 0) << program.err();
  EXPECT_NE(program.err().find("restarting all 2 ranks (restart 1 of 1)"), std::string::npos)
      << program.err();
  EXPECT_NE(program.err().find("resumed from "), std::string::npos) << program.err();
  train(2, settings + without_checkpoints(folder, steps));
  EXPECT_EQ(losses_in(folder.path("killed.jsonl")), losses_in(folder.path("whole.jsonl")));
}

TEST(Resume, OtherWorldsAndStrategiesResume) {
  const TrainingFolder folder;
  const auto batch = [&](int size) {
    return folder.small() + Settings{{"data.batch_size", std::to_string(size)}};
  };
  train(2, batch(6) + without_checkpoints(folder, 8));
  train(2, batch(6) + into(folder, "first", 4, 4) +
               Settings{{"checkpoint.state_dict_type", "SHARDED_STATE_DICT"}});
  struct Other {
    int world;
    const char* strategy;
    int group;
  };
  for (const auto& [world, strategy, group] :
       {Other{1, "FULL_SHARD", 1}, Other{3, "SHARD_OPTIMIZER", 1}, Other{4, "HYBRID_SHARD", 2},
        Other{2, "NO_SHARD", 1}}) {
    const std::string name = std::string(strategy);
    fs::copy(folder.path("first"), folder.path(name), fs::copy_options::recursive);
    fs::copy(folder.path("first.jsonl"), folder.path(name + ".jsonl"));
    train(world, batch(12 / world) + into(folder, name, 8, 100) +
                     Settings{{"sharding.sharding_strategy", strategy},
                              {"sharding.group_size", std::to_string(group)}});
    expect_close(folder.path(name + ".jsonl"), folder.path("whole.jsonl"), 1e-4);
  }
  // At the same world size even another strategy gives the same bits.
  EXPECT_EQ(losses_in(folder.path("NO_SHARD.jsonl")), losses_in(folder.path("whole.jsonl")));
}

TEST(Resume, ADamagedNewestCheckpointIsSkippedWithAWarning) {
  const TrainingFolder folder;
  train(2, folder.small() + without_checkpoints(folder, 6));
  train(2, folder.small() + into(folder, "saves", 4, 2));
  damage(folder.path("saves/step-4/model.safetensors"), 100'000);
  const Ended resumed = train(2, folder.small() + into(folder, "saves", 6, 2));
  EXPECT_NE(resumed.err.find("passed over step-4"), std::string::npos) << resumed.err;
  EXPECT_NE(resumed.err.find("model.safetensors"), std::string::npos) << resumed.err;
  EXPECT_NE(resumed.err.find("resumed from " + folder.path("saves/step-2")), std::string::npos)
      << resumed.err;
  EXPECT_EQ(losses_in(folder.path("saves.jsonl")), losses_in(folder.path("whole.jsonl")));
}

TEST(Resume, RetentionKeepsTheNewest) {
  const TrainingFolder folder;
  train(2, folder.small() + into(folder, "saves", 5, 1) + Settings{{"checkpoint.keep", "2"}});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path("saves"))) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{".lock", "latest", "step-4", "step-5"}));
  EXPECT_EQ(testing::read_text(folder.path("saves/latest")), "step-5\n");
}

TEST(Resume, TheRecipeChoosesWhereToStart) {
  const TrainingFolder folder;
  train(2, folder.small() + into(folder, "saves", 4, 2));
  const auto from = [&](const std::string& choice, const std::string& name) {
    return train(
        2, folder.small() + into(folder, name, 6, 100) + Settings{{"checkpoint.resume", choice}});
  };
  from("never", "anew");
  EXPECT_EQ(losses_in(folder.path("anew.jsonl")).size(), 6u);
  from(folder.path("saves/step-2"), "step");
  EXPECT_EQ(losses_in(folder.path("step.jsonl")).size(), 4u);
  from(folder.path("saves"), "newest");
  EXPECT_EQ(losses_in(folder.path("newest.jsonl")).size(), 2u);
  // A run that has reached its last step has nothing to do.
  const Ended done = train(2, folder.small() + into(folder, "newest", 6, 100));
  EXPECT_NE(done.err.find("resumed from " + folder.path("newest/step-6")), std::string::npos);
  EXPECT_EQ(losses_in(folder.path("newest.jsonl")).size(), 2u);
}

TEST(Resume, ChangesOfTheDataAreRefused) {
  const TrainingFolder folder;
  train(2, folder.small() + into(folder, "saves", 2, 2));
  std::string other = testing::sample_text(20'000);
  other[100] = 'X';
  folder.write("other.txt", other);
  struct RefusedResume {
    Settings setting;
    int code;
    std::string message;
  };
  const std::vector<RefusedResume> cases = {
      {{{"data.train", folder.path("other.txt")}}, 4, "is not the text that the run in"},
      {{{"model.seq_len", "32"}, {"model.n_positions", "64"}}, 3, "has model.seq_len 64"},
      {{{"train.seed", "5"}}, 3, "train.seed 0"},
      {{{"data.shuffle", "false"}}, 3, "data.shuffle true"},
      {{{"model.n_layer", "3"}},
       3,
       "step-2 was trained with model.n_layer 2, and this run has model.n_layer 3; set the values "
       "of that step, or begin anew in another checkpoint.dir"},
      {{{"model.n_embd", "32"}}, 3, "model.n_embd 64"},
      {{{"train.optimizer", "sgd"}},
       3,
       "was trained with train.optimizer adamw, and this run has "},
      {{{"model.n_layer", "3"}, {"train.optimizer", "sgd"}},
       3,
       "with model.n_layer 2, train.optimizer adamw, and"},
      // The same number of tensors with the same shapes, but another model.
      {{{"model.n_head", "2"}}, 3, "model.n_head 4"},
      {{{"model.seq_len", "32"}}, 3, "model.seq_len 64"},
  };
  for (const RefusedResume& refused : cases) {
    SCOPED_TRACE(refused.message);
    const Ended ended = run_program(launched(
        2, train_arguments(folder.small() + into(folder, "saves", 4, 2) + refused.setting)));
    EXPECT_EQ(ended.code, refused.code) << ended.err;
    EXPECT_EQ(ended.err.substr(0, 16), "tessera: error: ");
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_NE(ended.err.find(refused.message), std::string::npos) << ended.err;
  }
}

TEST(Resume, APretrainedFolderGivesTheWeightsOnly) {
  const TrainingFolder folder;
  train(2, folder.small() + into(folder, "saves", 4, 4) + Settings{{"train.lr", "3e-3"}});
  folder.write("tune.yaml", "model: {pretrained: " + folder.path("saves/step-4") +
                                ", seq_len: 64}\ndata: {train: " + folder.path("text.txt") +
                                ", batch_size: 2}\ntrain: {steps: 2}\n");
  const Ended ended = run_program(launched(
      2, train_arguments({{"log.jsonl", folder.path("tune.jsonl")}}, folder.path("tune.yaml"))));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("weights from " + folder.path("saves/step-4")), std::string::npos);
  const auto tuned = testing::metrics_in(folder.path("tune.jsonl"));
  ASSERT_EQ(tuned.size(), 2u);
  EXPECT_EQ(tuned.front().at("step"), 1);
  EXPECT_LT(tuned.front().at("loss").get<double>(),
            testing::metrics_in(folder.path("saves.jsonl")).front().at("loss").get<double>());
}

}  // namespace
}  // namespace tessera::training

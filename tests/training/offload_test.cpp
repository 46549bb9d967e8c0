// Runs with state in files: they resume from one another, have the planned memory, and end with an
// error when the disk fails.
#include <sys/resource.h>

#include "tests/cli/disk_testing.h"
#include "tests/cli/training_testing.h"

#include <nlohmann/json.hpp>

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::expect_close;
using testing::losses_in;
using testing::read_text;
using testing::Settings;
using testing::train;
using testing::TrainingFolder;

Settings in_files(const TrainingFolder& folder) {
  return {{"sharding.offload.parameters", "file"},
          {"sharding.offload.gradients", "file"},
          {"sharding.offload.optimizer", "file"},
          {"sharding.offload.folder", folder.path("offload")}};
}

Settings into(const TrainingFolder& folder, const std::string& name, int steps) {
  return {{"train.steps", std::to_string(steps)},     {"train.lr_decay_steps", "6"},
          {"train.gradient_accumulation_steps", "2"}, {"log.jsonl", folder.path(name + ".jsonl")},
          {"checkpoint.dir", folder.path(name)},      {"checkpoint.every", "3"}};
}

TEST(OffloadRuns, ResumeFromOneAnother) {
  const TrainingFolder folder;
  const Settings files = in_files(folder);
  const Settings other = {{"sharding.sharding_strategy", "SHARD_GRAD_OP"}};
  train(2, folder.small() + into(folder, "whole", 6));
  const auto whole = losses_in(folder.path("whole.jsonl"));
  ASSERT_EQ(whole.size(), 6u);
  for (const std::string type : {"FULL_STATE_DICT", "SHARDED_STATE_DICT"}) {
    const Settings small = folder.small() + Settings{{"checkpoint.state_dict_type", type}};
    train(2, small + files + into(folder, "out" + type, 3));
    train(2, small + other + into(folder, "out" + type, 6));
    EXPECT_EQ(losses_in(folder.path("out" + type + ".jsonl")), whole) << type;
    train(2, small + other + into(folder, "in" + type, 3));
    train(2, small + files + into(folder, "in" + type, 6));
    EXPECT_EQ(losses_in(folder.path("in" + type + ".jsonl")), whole) << type;
  }
  // The checkpoint is the same, whichever run wrote it.
  EXPECT_EQ(read_text(folder.path("outFULL_STATE_DICT/step-6/model.safetensors")),
            read_text(folder.path("whole/step-6/model.safetensors")));
  EXPECT_TRUE(fs::is_empty(folder.path("offload")));
}

TEST(OffloadRuns, AreAsPlanned) {
  const TrainingFolder folder;
  const std::string file = folder.path("memory.json");
  const Ended ended = train(2, folder.small() + in_files(folder) + Settings{{"log.memory", file}});
  EXPECT_EQ(ended.err.find("warning"), std::string::npos) << ended.err;
  const nlohmann::json log = nlohmann::json::parse(read_text(file));
  for (const char* kind : {"parameters", "gradients", "optimizer", "communication"})
    EXPECT_EQ(log["planned"][kind], log["measured"][kind]) << kind;
  EXPECT_EQ(log["in_files"]["planned"], log["in_files"]["measured"]);
  EXPECT_EQ(log["in_files"]["measured"].size(), 3u);
}

TEST(OffloadRuns, AFolderThatIsTooSmallIsRefusedAtOnce) {
  const TrainingFolder folder;
  const testing::SmallDisk disk(folder.path("offload"), "256k");
  if (!disk.mounted()) GTEST_SKIP() << "no file systems can be mounted here";
  const Ended ended = testing::run_program(
      testing::launched(2, testing::train_arguments(folder.small() + in_files(folder))));
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_NE(ended.err.find("has no room for the "), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find(" bytes are needed and "), std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find("step 1/"), std::string::npos) << ended.err;
}

}  // namespace
}  // namespace tessera::training

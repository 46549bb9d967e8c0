// The places for a run's results are checked before its first step: checkpoints that cannot be
// written or have no room, logs that another run writes, logs of an earlier run.
#include "base/text/byte_size.h"
#include "tests/cli/disk_testing.h"
#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::launched;
using testing::losses_in;
using testing::metrics_in;
using testing::read_text;
using testing::run_program;
using testing::Settings;
using testing::SmallDisk;
using testing::train_arguments;
using testing::TrainingFolder;

// Expects one line: no work was begun.
void expect_refused_at_start(const Ended& ended, int code, const std::string& message) {
  EXPECT_EQ(ended.code, code) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_TRUE(ended.err.starts_with("tessera: error: ")) << ended.err;
  EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err << "wanted: " << message;
}

Settings saving(const TrainingFolder& folder, const std::string& name = "saves") {
  return folder.small() + Settings{{"checkpoint.dir", folder.path(name)},
                                   {"checkpoint.every", "3"},
                                   {"train.steps", "6"},
                                   {"log.jsonl", folder.path("m.jsonl")}};
}

TEST(Outputs, AReadOnlyFolderOfCheckpointsIsRefused) {
  const TrainingFolder folder;
  const SmallDisk disk(folder.path("saves"), "8m");
  if (!disk.mounted() || !disk.make_read_only()) GTEST_SKIP() << "no file system can be mounted";
  for (const int ranks : {1, 2}) {
    const Ended ended = run_program(launched(ranks, train_arguments(saving(folder))));
    expect_refused_at_start(ended, 5, "Read-only file system");
    EXPECT_NE(ended.err.find("checkpoint.dir"), std::string::npos) << ended.err;
  }
  const Ended export_only = run_program(train_arguments(
      folder.small() + Settings{{"checkpoint.export", folder.path("saves/model")}}));
  expect_refused_at_start(export_only, 5, "Read-only file system");
  EXPECT_FALSE(fs::exists(folder.path("m.jsonl")));
}

TEST(Outputs, AFolderWithoutRoomForOneCheckpointIsRefused) {
  const TrainingFolder folder;
  const SmallDisk disk(folder.path("saves"), "1m");
  if (!disk.mounted()) GTEST_SKIP() << "no file system can be mounted";
  const Ended ended = run_program(launched(2, train_arguments(saving(folder))));
  expect_refused_at_start(ended, 5, "has 1.00 MiB free, and a checkpoint needs 1.38 MiB");
  // A save really writes this number of bytes.
  testing::train(2, saving(folder, "roomy"));
  const std::string step = folder.path("roomy/step-6/");
  EXPECT_EQ(bytes_text(fs::file_size(step + "model.safetensors") +
                       fs::file_size(step + "optimizer.safetensors")),
            "1.39 MiB");  // with the headers
  const Ended weights = run_program(train_arguments(
      folder.small() +
      Settings{{"model.n_embd", "128"}, {"checkpoint.export", folder.path("saves/model")}}));
  expect_refused_at_start(weights, 5, "the export needs ");
}

TEST(Outputs, AFolderWithoutRoomForAllCheckpointsGivesAWarning) {
  const TrainingFolder folder;
  const SmallDisk disk(folder.path("saves"), "2600k");
  if (!disk.mounted()) GTEST_SKIP() << "no file system can be mounted";
  const std::string warning = "warning: checkpoint.dir: ";
  const Ended failed = run_program(train_arguments(saving(folder)));
  EXPECT_EQ(failed.code, 5) << failed.err;
  EXPECT_NE(failed.err.find(warning), std::string::npos) << failed.err;
  EXPECT_NE(failed.err.find("and 2 checkpoints of 1.38 MiB need 2.76 MiB; checkpoint.keep removes"),
            std::string::npos)
      << failed.err;
  fs::remove_all(folder.path("saves/step-3"));
  const Ended once =
      run_program(train_arguments(saving(folder) + Settings{{"checkpoint.every", "6"}}));
  EXPECT_EQ(once.code, 0) << once.err;
  EXPECT_EQ(once.err.find(warning), std::string::npos) << once.err;
}

TEST(Outputs, ALogThatAnotherRunWritesIsRefusedWithItsProcess) {
  const TrainingFolder folder;
  const Settings logs = {{"log.jsonl", folder.path("m.jsonl")},
                         {"log.csv", folder.path("m.csv")},
                         {"log.tensorboard", folder.path("tb")},
                         {"log.trace", folder.path("t.json")},
                         {"log.trace_steps", "[1, 100000]"}};
  const testing::Program first(
      train_arguments(folder.small() + logs + Settings{{"train.steps", "100000"}}),
      {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("m.jsonl")) > 2; }))
      << first.err();
  for (const auto& [key, file] : logs) {
    if (key == "log.trace_steps") continue;
    const Ended second = run_program(train_arguments(folder.small() + Settings{{key, file}}));
    expect_refused_at_start(second, 3,
                            "is being written by another run, process " +
                                std::to_string(first.pid()) + "; name another file");
    EXPECT_NE(second.err.find(key + ": " + file), std::string::npos) << second.err;
  }
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("m.jsonl")) > 9; }));
  std::int64_t step = 0;
  for (const std::string& line : losses_in(folder.path("m.jsonl"))) {
    EXPECT_TRUE(line.starts_with("{\"step\": " + std::to_string(++step) + ",")) << line;
  }
}

TEST(Outputs, ALinkOfAnotherUserIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a link of another user's";
  const TrainingFolder folder;
  for (const std::string key : {"log.jsonl", "log.csv", "log.summary", "log.trace", "log.memory"}) {
    // An earlier log of a run, so that only the link speaks against it.
    const std::string file = folder.path("precious"), link = folder.path("link");
    fs::remove(file);
    ASSERT_EQ(run_program(train_arguments(folder.small() + Settings{{key, file}})).code, 0);
    const std::string before = testing::read_text(file);
    fs::remove(link);
    fs::create_symlink("precious", link);
    ASSERT_EQ(::lchown(link.c_str(), 65534, 65534), 0);
    const Ended ended = run_program(train_arguments(folder.small() + Settings{{key, link}}));
    EXPECT_EQ(ended.code, 3) << key;
    EXPECT_NE(ended.err.find("link is a symbolic link of another user"), std::string::npos)
        << ended.err;
    EXPECT_EQ(testing::read_text(file), before);
  }
}

TEST(Outputs, TwoLogsOfARunNeedTwoFiles) {
  const TrainingFolder folder;
  const Ended ended =
      run_program(train_arguments(folder.small() + Settings{{"log.jsonl", folder.path("m.log")},
                                                            {"log.csv", folder.path("m.log")}}));
  expect_refused_at_start(ended, 3,
                          "log.csv: " + folder.path("m.log") + ": is the same file as log.jsonl");
  fs::create_symlink("m.log", folder.path("link"));
  expect_refused_at_start(
      run_program(train_arguments(folder.small() + Settings{{"log.jsonl", folder.path("m.log")},
                                                            {"log.memory", folder.path("link")}})),
      3, "log.memory: " + folder.path("link") + ": is the same file as log.jsonl");
  EXPECT_FALSE(fs::exists(folder.path("m.log")));
}

// A shell's `>> file` belongs to the caller: the program appends to it and does not move it.
TEST(Outputs, StandardOutputIsAppendedTo) {
  const TrainingFolder folder;
  std::string command = testing::program_path();
  for (const std::string& word :
       train_arguments(folder.small() + Settings{{"log.jsonl", "/dev/stdout"}})) {
    command += " '" + word + "'";
  }
  command += " >> " + folder.path("all.jsonl") + " 2> /dev/null";
  for (const int lines : {3, 6}) {
    EXPECT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c): the test needs the shell
    EXPECT_EQ(testing::lines_of(folder.path("all.jsonl")), lines);
  }
  EXPECT_FALSE(fs::exists(folder.path("all.1.jsonl")));
}

TEST(Outputs, LogsOfAnEarlierRunAreKeptUnderAnotherName) {
  const TrainingFolder folder;
  const Settings logs = {{"log.jsonl", folder.path("m.jsonl")},
                         {"log.csv", folder.path("m.csv")},
                         {"log.tensorboard", folder.path("tb")},
                         {"checkpoint.dir", folder.path("saves")},
                         {"checkpoint.resume", "never"}};
  testing::train(2, folder.small() + logs);
  const std::string earlier = read_text(folder.path("m.jsonl"));
  const std::string table = read_text(folder.path("m.csv"));
  const Ended again = testing::train(2, folder.small() + logs + Settings{{"train.steps", "2"}});
  EXPECT_NE(
      again.err.find("log.jsonl: the file of an earlier run is now " + folder.path("m.1.jsonl")),
      std::string::npos)
      << again.err;
  EXPECT_EQ(read_text(folder.path("m.1.jsonl")), earlier);
  EXPECT_EQ(read_text(folder.path("m.1.csv")), table);
  EXPECT_EQ(metrics_in(folder.path("m.jsonl")).size(), 2u);
  // TensorBoard reads every file whose name has "tfevents".
  EXPECT_TRUE(fs::exists(folder.path("tb/events.out.tfevents.tessera")));
  EXPECT_TRUE(fs::exists(folder.path("tb/events.out.earlier.1.tessera")));
  testing::train(2, folder.small() + logs);
  EXPECT_EQ(metrics_in(folder.path("m.2.jsonl")).size(), 2u);
  // A resumed run continues its file.
  testing::train(
      2, folder.small() + logs + Settings{{"checkpoint.resume", "auto"}, {"train.steps", "4"}});
  EXPECT_EQ(metrics_in(folder.path("m.jsonl")).size(), 4u);
  EXPECT_FALSE(fs::exists(folder.path("m.3.jsonl")));
}

}  // namespace
}  // namespace tessera::training

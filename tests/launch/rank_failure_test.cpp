// A rank of a training run is killed, or stopped: the job ends soon, names it, and leaves nothing
// behind.
#include "tests/cli/training_testing.h"

namespace tessera::launcher {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::eventually;
using testing::launched;
using testing::pid_of_rank;
using testing::Program;
using testing::read_text;
using testing::Settings;
using testing::train_arguments;
using testing::TrainingFolder;

// A run that does not end by itself, after a few steps.
class LongRun {
 public:
  explicit LongRun(int ranks, const std::map<std::string, std::string>& environment = {})
      : program(launched(ranks, train_arguments(folder_.small() +
                                                Settings{{"train.steps", "1000000"},
                                                         {"log.jsonl", folder_.path("m.jsonl")}})),
                environment) {
    const std::string jsonl = folder_.path("m.jsonl");
    under_way = eventually([&] { return testing::lines_of(jsonl) >= 3; });
  }
  // The processes of the job have the metrics file of this folder in their command line.
  [[nodiscard]] int processes() const { return testing::processes_with(folder_.path("m.jsonl")); }

 private:
  TrainingFolder folder_;

 public:
  Program program;
  bool under_way = false;
};

TEST(RankFailure, AKilledRankEndsTheJobWithin5SecondsAndIsNamed) {
  for (const int victim : {0, 2}) {
    LongRun run(3);
    ASSERT_TRUE(run.under_way) << run.program.err();
    EXPECT_GE(run.processes(), 4);
    const pid_t pid = pid_of_rank(run.program.pid(), victim);
    ASSERT_GT(pid, 0);
    const auto killed = steady_clock::now();
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    EXPECT_EQ(run.program.wait(), 7) << run.program.err();
    EXPECT_LT(steady_clock::now() - killed, seconds(5));
    EXPECT_NE(run.program.err().find("tessera: error: rank " + std::to_string(victim) + " (pid " +
                                     std::to_string(pid) + ") was killed by signal 9 (SIGKILL)"),
              std::string::npos)
        << run.program.err();
    EXPECT_TRUE(eventually([&] { return run.processes() == 0; }));
  }
}

TEST(RankFailure, SharedMemoryHasNoName) {
  LongRun run(2);
  ASSERT_TRUE(run.under_way) << run.program.err();
  for (const int rank : {0, 1}) {
    const fs::path process =
        fs::path("/proc") / std::to_string(pid_of_rank(run.program.pid(), rank));
    const std::string maps = read_text(process / "maps");
    // The job's memory is an unnamed file, which is freed with its last user.
    EXPECT_NE(maps.find("/memfd:tessera"), std::string::npos);
    EXPECT_EQ(maps.find("/dev/shm/"), std::string::npos) << maps;
    EXPECT_EQ(maps.find("/SYSV"), std::string::npos) << maps;
    for (const auto& entry : fs::directory_iterator(process / "fd")) {
      std::error_code closed_meanwhile;
      const std::string target = fs::read_symlink(entry.path(), closed_meanwhile);
      EXPECT_FALSE(target.starts_with("/dev/shm/")) << target;
    }
  }
}

// With the default limit.
TEST(RankFailure, AStoppedRankEndsTheJobWithin6SecondsAndIsNamed) {
  LongRun run(3);
  ASSERT_TRUE(run.under_way) << run.program.err();
  const pid_t pid = pid_of_rank(run.program.pid(), 1);
  ASSERT_GT(pid, 0);
  const auto stopped = steady_clock::now();
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  EXPECT_EQ(run.program.wait(seconds(20)), 7) << run.program.err();
  EXPECT_LT(steady_clock::now() - stopped, seconds(6));
  const std::string error = run.program.err();
  for (const std::string& part :
       {std::string("tessera: error: "), "rank 1 (pid " + std::to_string(pid) + ") has given no",
        std::string("sign of life for 5.0 s"), std::string("its last call was "),
        std::string("the last 32 collectives of each rank: on "), std::string("backward: ")}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
  }
  EXPECT_TRUE(eventually([&] { return run.processes() == 0; }));
}

TEST(RankFailure, AKilledLauncherEndsItsRanks) {
  LongRun run(2);
  ASSERT_TRUE(run.under_way) << run.program.err();
  run.program.signal(SIGKILL);
  EXPECT_EQ(run.program.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return run.processes() == 0; }));
}

TEST(RankFailure, ASecondSignalDoesNotWaitForTheSave) {
  LongRun run(2);
  ASSERT_TRUE(run.under_way) << run.program.err();
  // Rank 1 cannot finish its step any more.
  const pid_t pid = pid_of_rank(run.program.pid(), 1);
  ASSERT_GT(pid, 0);  // kill(-1) would stop every process on this machine
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  run.program.signal(SIGINT);
  EXPECT_EQ(run.program.wait(std::chrono::milliseconds(700)), -1);
  run.program.signal(SIGINT);
  EXPECT_EQ(run.program.wait(seconds(10)), 128 + SIGINT) << run.program.err();
  EXPECT_TRUE(eventually([&] { return run.processes() == 0; }));
}

}  // namespace
}  // namespace tessera::launcher

// A signal to a run: it is reported at once, and with gradient accumulation the run stops between
// two micro-batches, from where it resumes to the bit.
#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::launched;
using testing::losses_in;
using testing::Program;
using testing::Settings;
using testing::train_arguments;
using testing::TrainingFolder;

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The steps take longer than the half second within which ranks agree on a signal.
TEST(Interruption, ARunStopsBetweenMicroBatchesAndResumesToTheBit) {
  for (const std::string reduces : {"true", "false"}) {
    const TrainingFolder folder;
    const Settings settings =
        folder.small() + Settings{{"sharding.sharding_strategy", "FULL_SHARD"},
                                  {"train.sync_each_batch", reduces},
                                  {"train.gradient_accumulation_steps", "800"},
                                  {"train.steps", "2"},
                                  {"model.dropout", "0.1"}};
    testing::train(2, settings + Settings{{"log.jsonl", folder.path("whole.jsonl")}});
    const Settings stopped = settings + Settings{{"log.jsonl", folder.path("m.jsonl")},
                                                 {"log.summary", folder.path("summary.json")},
                                                 {"checkpoint.dir", folder.path("saves")},
                                                 {"checkpoint.every", "5"}};
    Program program(launched(2, train_arguments(stopped)), {{"OMP_NUM_THREADS", "1"}});
    ASSERT_TRUE(
        testing::eventually([&] { return testing::lines_of(folder.path("m.jsonl")) == 1; }));
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(), 128 + SIGTERM) << program.err();
    EXPECT_EQ(occurrences(program.err(),
                          "tessera: signal 15 (SIGTERM): the run saves its last finished step and "
                          "ends; send it again to end at once\n"),
              1)
        << program.err();
    EXPECT_NE(program.err().find("stopped by signal 15 after saving step 1"), std::string::npos)
        << program.err();
    EXPECT_EQ(testing::lines_of(folder.path("m.jsonl")), 1) << reduces;
    EXPECT_TRUE(fs::exists(folder.path("saves/step-1")));
    testing::train(2, stopped);
    EXPECT_EQ(losses_in(folder.path("m.jsonl")), losses_in(folder.path("whole.jsonl"))) << reduces;
  }
}

// The evaluation would take minutes.
TEST(Interruption, AnEvaluationDoesNotHaveToEndFirst) {
  const TrainingFolder folder;
  const Settings settings =
      folder.small() +
      Settings{{"data.valid", folder.path("text.txt")},  {"train.eval_every", "1"},
               {"train.eval_batches", "1000000"},        {"log.jsonl", folder.path("m.jsonl")},
               {"checkpoint.dir", folder.path("saves")}, {"checkpoint.every", "5"}};
  Program program(launched(2, train_arguments(settings)), {{"OMP_NUM_THREADS", "1"}});
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("m.jsonl")) == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto begin = std::chrono::steady_clock::now();
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM) << program.err();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  for (const char* const part : {"step 1: the evaluation is left out, because of signal 15",
                                 "stopped by signal 15 after saving step 1"}) {
    EXPECT_NE(program.err().find(part), std::string::npos) << program.err();
  }
  EXPECT_TRUE(fs::exists(folder.path("saves/step-1")));
}

TEST(Interruption, WithinTheFirstStepNothingIsSaved) {
  const TrainingFolder folder;
  const Settings settings = folder.small() + Settings{{"train.gradient_accumulation_steps", "3000"},
                                                      {"log.csv", folder.path("m.csv")}};
  for (const bool saves : {true, false}) {
    Program program(
        train_arguments(settings +
                        (saves ? Settings{{"checkpoint.dir", folder.path("saves")}} : Settings{})),
        {{"OMP_NUM_THREADS", "1"}});
    ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("m.csv")) == 1; }));
    program.signal(SIGINT);
    EXPECT_EQ(program.wait(), 128 + SIGINT) << program.err();
    EXPECT_NE(program.err().find(saves ? "stopped by signal 2 within the first step; nothing saved"
                                       : "nothing saved, because checkpoint.dir is not set"),
              std::string::npos)
        << program.err();
    EXPECT_FALSE(fs::exists(folder.path("saves/step-0")));
    fs::remove(folder.path("m.csv"));
  }
}

// Rank 1 is stopped, so that rank 0 waits for it when the signals come.
TEST(Interruption, ASecondSignalIsReportedAndEndsTheRun) {
  for (const bool to_launcher : {false, true}) {
    const TrainingFolder folder;
    Program program(launched(2, train_arguments(folder.small() +
                                                Settings{{"train.steps", "1000000"},
                                                         {"log.jsonl", folder.path("m.jsonl")}})),
                    {{"OMP_NUM_THREADS", "1"}, {"TESSERA_STANDSTILL_TIMEOUT", "60"}});
    ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("m.jsonl")) > 1; }));
    const pid_t rank_0 = testing::pid_of_rank(program.pid(), 0);
    const pid_t rank_1 = testing::pid_of_rank(program.pid(), 1);
    ASSERT_GT(rank_0, 0);
    ASSERT_GT(rank_1, 0);
    ::kill(rank_1, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const pid_t target = to_launcher ? program.pid() : rank_0;
    ::kill(target, SIGTERM);
    EXPECT_TRUE(testing::eventually([&] {
      return program.err().find(
                 "signal 15 (SIGTERM): the run ends and saves nothing; send it again to "
                 "end at once\n") != std::string::npos;
    })) << program.err();
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    ::kill(target, SIGTERM);
    EXPECT_EQ(program.wait(), to_launcher ? 128 + SIGTERM : 7) << program.err();
    EXPECT_EQ(occurrences(program.err(), to_launcher
                                             ? "tessera: second signal 15 (SIGTERM): the ranks are "
                                               "killed\n"
                                             : "tessera: second signal 15 (SIGTERM): the run ends "
                                               "now\n"),
              1)
        << program.err();
  }
}

}  // namespace
}  // namespace tessera::training

// Runs that share a folder, restarts by the launcher, and signals that ask for a save.
#include "tests/cli/training_testing.h"

namespace tessera::training {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::launched;
using testing::metrics_in;
using testing::Program;
using testing::run_program;
using testing::Settings;
using testing::train;
using testing::train_arguments;
using testing::TrainingFolder;

Settings saving(const TrainingFolder& folder, int steps, int every, const std::string& resume) {
  return {{"train.steps", std::to_string(steps)},
          {"checkpoint.dir", folder.path("saves")},
          {"checkpoint.every", std::to_string(every)},
          {"checkpoint.resume", resume}};
}

std::vector<std::string> steps_in(const TrainingFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path("saves"))) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool says(const Ended& ended, const std::string& text) {
  return ended.err.find(text) != std::string::npos;
}

TEST(Lineage, ANewRunKeepsTheOldOneAndReportsIt) {
  const TrainingFolder folder;
  train(2, folder.small() + saving(folder, 4, 2, "auto"));
  const Settings keep_one{{"checkpoint.keep", "1"}};
  const Ended anew = train(2, folder.small() + saving(folder, 3, 1, "never") + keep_one);
  EXPECT_TRUE(says(anew, folder.path("saves") + " holds 2 steps of another run")) << anew.err;
  EXPECT_TRUE(says(anew, "warning: '" + folder.path("saves/step-2") + "' belonged to another run"))
      << anew.err;
  const auto names = steps_in(folder);
  ASSERT_EQ(names.size(), 3u);
  EXPECT_TRUE(names[0].starts_with("step-2.of-"));
  EXPECT_EQ(names[1], "step-3");
  EXPECT_EQ(names[2], "step-4");
  // `auto` resumes the new run, though the other one has a higher step.
  const Ended next = train(2, folder.small() + saving(folder, 4, 10, "auto") + keep_one);
  EXPECT_TRUE(says(next, "resumed from " + folder.path("saves/step-3"))) << next.err;
  EXPECT_TRUE(says(next, "the run saved last goes on")) << next.err;
  // Both steps of the old run are still valid.
  for (const std::string& name : steps_in(folder)) {
    if (name.find(".of-") == std::string::npos) continue;
    const Ended old =
        train(2, folder.small() + saving(folder, 5, 10, folder.path("saves/" + name)) +
                     Settings{{"checkpoint.dir", folder.path("copy")}});
    EXPECT_TRUE(says(old, "resumed from " + folder.path("saves/" + name))) << old.err;
  }
}

TEST(Lineage, FromAnOlderStepIsANewRun) {
  const TrainingFolder folder;
  train(2, folder.small() + saving(folder, 4, 1, "auto"));
  train(2, folder.small() + saving(folder, 3, 10, folder.path("saves/step-2")) +
               Settings{{"checkpoint.keep", "1"}});
  EXPECT_EQ(steps_in(folder).size(), 5u);  // step-3 and the old step-3
  const Ended next = train(2, folder.small() + saving(folder, 4, 10, "auto"));
  EXPECT_TRUE(says(next, "resumed from " + folder.path("saves/step-3"))) << next.err;
}

// Training that kills itself with the signal once, in the step after `step` was saved.
Ended train_and_die_once(const TrainingFolder& folder, const Settings& settings, int step) {
  const std::string mark = folder.path("died");
  folder.write("rank.sh",
               "if [ $TORCHELASTIC_RESTART_COUNT = 0 ] && [ $RANK = 1 ]; then\n  (while [ ! -e " +
                   folder.path("saves/step-" + std::to_string(step)) +
                   " ]; do sleep 0.01; done; kill -9 $$) &\nfi\nexec \"$@\"\n");
  std::vector<std::string> arguments = {"launch",
                                        "--nproc-per-node",
                                        "2",
                                        "--max-restarts",
                                        "2",
                                        "--",
                                        "sh",
                                        folder.path("rank.sh"),
                                        testing::program_path()};
  for (const std::string& argument : train_arguments(settings)) arguments.push_back(argument);
  return run_program(arguments);
}

TEST(Restart, ContinuesFromTheNewestSaveWhateverResumeSays) {
  for (const std::string resume : {"never", "step"}) {
    const TrainingFolder folder;
    train(2, folder.small() + saving(folder, 2, 2, "auto"));
    const std::string from = resume == "step" ? folder.path("saves/step-2") : resume;
    const int first = resume == "never" ? 0 : 2;
    const int save_at = 10;
    const Ended ended = train_and_die_once(
        folder,
        folder.small() + saving(folder, 80, save_at, from) + Settings{{"checkpoint.keep", "8"}},
        save_at);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_TRUE(says(ended, "restarting all 2 ranks")) << ended.err;
    EXPECT_TRUE(says(ended, "restart 1: from the newest save of this run")) << ended.err;
    const auto at = ended.err.find("restart 1: ");
    ASSERT_NE(at, std::string::npos);
    const std::string first_start = ended.err.substr(0, ended.err.find("restarting all"));
    EXPECT_EQ(
        first_start.find("resumed from " + folder.path("saves/step-2\n")) != std::string::npos,
        first == 2)
        << ended.err;
    const std::string second_start = ended.err.substr(ended.err.find("restarting all"));
    EXPECT_EQ(second_start.find("resumed from " + folder.path("saves/step-2\n")), std::string::npos)
        << ended.err;
    EXPECT_TRUE(fs::exists(folder.path("saves/step-80")));
  }
}

// torchrun sets no variable of Tessera's: its own process and job identify the starts that belong
// together.
TEST(Restart, AlsoWithAnotherLauncher) {
  const TrainingFolder folder;
  const auto command = [&](const Settings& settings) {
    std::string text = testing::program_path();
    for (const std::string& argument : train_arguments(folder.small() + settings)) {
      text += " '" + argument + "'";
    }
    return text;
  };
  folder.write("torchrun.sh", "unset TESSERA_LAUNCH_ID\n" + command(saving(folder, 2, 1, "never")) +
                                  "\nexport TORCHELASTIC_RESTART_COUNT=1\n" +
                                  command(saving(folder, 3, 1, "never")) + "\nexit 0\n");
  const std::vector<std::string> arguments = {"launch", "--nproc-per-node",        "1", "--",
                                              "sh",     folder.path("torchrun.sh")};
  const Ended first = run_program(arguments);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(says(first, "resumed from " + folder.path("saves/step-2"))) << first.err;
  EXPECT_EQ(steps_in(folder).size(), 3u);
  // A second launch of the same job is not a restart.
  const Ended second = run_program(arguments);
  EXPECT_TRUE(says(second, "holds 3 steps of another run")) << second.err;
  EXPECT_EQ(steps_in(folder).size(), 6u);
}

// Agents of torchrun on several hosts each count their own restarts.
TEST(Restart, RanksAgreeWhetherItIsARestart) {
  const TrainingFolder folder;
  const auto command = [&](const Settings& settings) {
    std::string text = testing::program_path();
    for (const std::string& argument : train_arguments(folder.small() + settings)) {
      text += " '" + argument + "'";
    }
    return text;
  };
  folder.write("torchrun.sh",
               command(saving(folder, 2, 1, "never")) +
                   "\nif [ $RANK = 1 ]; then export TORCHELASTIC_RESTART_COUNT=1; fi\n" +
                   command(saving(folder, 3, 1, "never")) + "\n");
  const Ended ended =
      run_program({"launch", "--nproc-per-node", "2", "--", "sh", folder.path("torchrun.sh")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(says(ended, "restart 1: from the newest save of this run")) << ended.err;
  EXPECT_EQ(steps_in(folder).size(), 3u);
}

TEST(Restart, PermanentErrorsAreNotRetried) {
  for (const int code : {2, 3, 4, 5, 8}) {
    const Ended ended = run_program({"launch", "--nproc-per-node", "1", "--max-restarts", "3", "--",
                                     "sh", "-c", "exit " + std::to_string(code)});
    EXPECT_EQ(ended.code, code);
    EXPECT_FALSE(says(ended, "restarting")) << ended.err;
  }
  for (const int code : {1, 6, 7}) {
    const Ended ended = run_program({"launch", "--nproc-per-node", "1", "--max-restarts", "1", "--",
                                     "sh", "-c", "exit " + std::to_string(code)});
    EXPECT_TRUE(says(ended, "restarting")) << ended.err;
  }
}

TEST(Signals, AHangUpSavesFirst) {
  const TrainingFolder folder;
  Program program(
      launched(2, train_arguments(folder.small() + saving(folder, 1'000'000, 1'000'000, "auto") +
                                  Settings{{"log.jsonl", folder.path("log.jsonl")}})));
  ASSERT_TRUE(testing::eventually([&] { return testing::lines_of(folder.path("log.jsonl")) >= 2; }))
      << program.err();
  // As when a terminal is closed: its shell sends one signal, and the kernel another.
  program.signal(SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  program.signal(SIGHUP);
  EXPECT_EQ(program.wait(), 128 + SIGHUP) << program.err();
  EXPECT_NE(program.err().find("stopped by signal 1 after saving step "), std::string::npos)
      << program.err();
  EXPECT_EQ(steps_in(folder).size(), 1u);
}

TEST(Signals, AWarningSavesAndContinues) {
  const TrainingFolder folder;
  Program program(
      launched(2, train_arguments(folder.small() + saving(folder, 1'000'000, 1'000'000, "auto") +
                                  Settings{{"log.jsonl", folder.path("log.jsonl")}})));
  const auto lines = [&] { return testing::lines_of(folder.path("log.jsonl")); };
  ASSERT_TRUE(testing::eventually([&] { return lines() >= 2; })) << program.err();
  for (std::size_t saves = 1; saves <= 2; ++saves) {
    program.signal(SIGUSR1);
    ASSERT_TRUE(testing::eventually([&] {
      return fs::exists(folder.path("saves")) && steps_in(folder).size() == saves &&
             steps_in(folder).back().find(".partial") == std::string::npos;
    })) << program.err();
    const int before = lines();
    ASSERT_TRUE(testing::eventually([&] { return lines() > before + 2; })) << program.err();
  }
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM) << program.err();
}

TEST(Evaluation, IsInTheMetricsAndTheBestIsKept) {
  const TrainingFolder folder;
  folder.write("valid.txt", testing::sample_text(5'000));
  const Settings settings = folder.small() + saving(folder, 6, 1, "auto") +
                            Settings{{"data.valid", folder.path("valid.txt")},
                                     {"train.eval_batches", "1"},
                                     {"checkpoint.keep", "1"},
                                     {"checkpoint.keep_best", "true"},
                                     {"train.lr", "0.05"},
                                     {"log.jsonl", folder.path("log.jsonl")}};
  const Ended ended = train(2, settings);
  std::int64_t best = 0;
  double least = 1e9;
  int evaluations = 0;
  for (const auto& line : metrics_in(folder.path("log.jsonl"))) {
    if (!line.contains("valid_loss")) continue;
    ++evaluations;
    const double loss = line.at("valid_loss").get<double>();
    if (loss <= least) best = line.at("step").get<std::int64_t>();
    least = std::min(least, loss);
  }
  EXPECT_EQ(evaluations, 6) << ended.err;
  const std::string name = "step-" + std::to_string(best);
  EXPECT_EQ(testing::read_text(folder.path("saves/best")), name + "\n");
  EXPECT_TRUE(fs::exists(folder.path("saves/" + name)));
  EXPECT_TRUE(fs::exists(folder.path("saves/step-6")));
  EXPECT_LE(steps_in(folder).size(), 2u);
  // Keeping the best requires an evaluation.
  const Ended refused = run_program(train_arguments(folder.small() + saving(folder, 6, 1, "auto") +
                                                    Settings{{"checkpoint.keep_best", "2"}}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(says(refused, "needs data.valid")) << refused.err;
}

}  // namespace
}  // namespace tessera::training

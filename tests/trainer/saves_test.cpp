// What a save returns and warns of, and the failure of a save that the program did not wait for.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "sharding/context/run.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::run_small;
using testing::TemporaryFolder;

std::vector<std::string> warnings_of(const RunEvents& all) {
  std::vector<std::string> warnings;
  for (const RunEvent& event : all) {
    if (const auto* warning = std::get_if<events::Warning>(&event)) {
      warnings.push_back(warning->text);
    }
  }
  return warnings;
}

TEST(TrainerSaves, KeepBestWarnsOnceOfSavesWithoutAScore) {
  const TemporaryFolder folder;
  TrainerOptions options{.checkpoint = {.dir = folder / "run", .save = {.keep_best = 1}}};
  run_small({.options = options}, [](Trainer& trainer) {
    const auto saved = [&](const std::optional<tasks::Evaluation>& found) {
      (void)trainer.step();
      return warnings_of(trainer.save(found));
    };
    using Found = tasks::Evaluation;
    EXPECT_TRUE(saved(Found{.numbers = {{"loss", 1.0}}}).empty());
    EXPECT_EQ(saved({}), std::vector<std::string>{
                             "keep_best: save() got no evaluation, so the step is none of "
                             "the best; pass what evaluate() returns"});
    EXPECT_TRUE(saved({}).empty());
    EXPECT_EQ(
        saved(Found{.numbers = {{"loss", std::nan("")}}}),
        std::vector<std::string>{"keep_best: loss is not finite, so the step is none of the best"});
    EXPECT_TRUE(saved(Found{.numbers = {{"loss", INFINITY}}}).empty());
    EXPECT_TRUE(testing::misuse_of([&] {
                  return saved(Found{});
                }).starts_with("an evaluation without numbers"));
  });
}

// A save that a signal asks for has no evaluation.
TEST(TrainerSaves, ARequestedSaveNeedsNoScore) {
  const TemporaryFolder folder;
  TrainerOptions options{.checkpoint = {.dir = folder / "run", .save = {.keep_best = 1}}};
  options.signals = [] { return RunSignals{.saves = 1}; };
  run_small({.options = options}, [](Trainer& trainer) {
    (void)trainer.step();
    EXPECT_TRUE(trainer.save_requested());
    EXPECT_TRUE(warnings_of(trainer.save()).empty());
  });
}

// `every` is for the program's loop and for prepare_folder().
TEST(TrainerSaves, WithoutAnIntervalTheLoopMaySave) {
  const TemporaryFolder folder;
  const TrainerOptions options{.checkpoint = {.dir = folder / "run", .every = 0, .async = true}};
  run_small({.options = options}, [&](Trainer& trainer) {
    EXPECT_FALSE(trainer.saves());
    EXPECT_TRUE(trainer.prepare_folder().empty());
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
    (void)trainer.step();
    const RunEvents events = trainer.save();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_FALSE(std::get<events::Saved>(events[0]).seconds.has_value());
  });
  run_small({.options = options}, [](Trainer& trainer) {
    EXPECT_EQ(trainer.resume().size(), 1u);
    EXPECT_EQ(trainer.position().steps, 1);
  });
}

TEST(TrainerSaves, FoldersThatCannotBeWrittenAreRefusedBeforeTheFirstStep) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  const auto refused = [](const CheckpointOptions& checkpoint) {
    return testing::error_of(
        [&] {
          run_small({.options = {.checkpoint = checkpoint}},
                    [](Trainer& trainer) { (void)trainer.prepare_folder(); });
        },
        ErrorCode::checkpoint);
  };
  const std::string below = folder / "file/below";
  EXPECT_EQ(refused({.dir = below}),
            "TrainerOptions: checkpoint.dir: rank 0: cannot create folder '" + below +
                "': mkdir failed: Not a directory (ENOTDIR); name a folder that can be written");
  EXPECT_EQ(refused({.export_folder = folder / "file"}),
            "TrainerOptions: checkpoint.export_folder: rank 0: '" + (folder / "file").string() +
                "' is not a folder; export to another place");
}

// Something that is not a checkpoint has the name of the step.
TEST(TrainerSaves, AFailedSaveWithoutAWaitIsTheProgramsError) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run/step-1/mine");
  const TrainerOptions options{
      .checkpoint = {.dir = folder / "run", .resume = "never", .async = true}};
  ::testing::internal::CaptureStderr();
  const int code = run([&] {
    run_small({.ranks = 2, .options = options}, [](Trainer& trainer) {
      (void)trainer.step();
      (void)trainer.save();
    });
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, static_cast<int>(ErrorCode::checkpoint));
  EXPECT_TRUE(said.starts_with("tessera: error: the asynchronous save failed: ")) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;  // one line, of rank 0
  EXPECT_EQ(run([] {}), 0);
}

// The step reports it, and leaves the last one as it was.
TEST(TrainerSaves, AfterAFailedAsynchronousSaveAnotherOneMayFollow) {
  const TemporaryFolder folder;
  const std::filesystem::path mine = folder / "run/step-1/mine";
  std::filesystem::create_directories(mine);
  const TrainerOptions options{
      .checkpoint = {.dir = folder / "run", .resume = "never", .async = true}};
  run_small({.options = options}, [&](Trainer& trainer) {
    (void)trainer.step();
    (void)trainer.save();
    std::int64_t steps = 1;
    const std::string text = testing::error_of(
        [&] {
          while (steps < 100'000) steps = trainer.step().value().step;
        },
        ErrorCode::checkpoint);
    EXPECT_NE(text.find("is not a checkpoint of Tessera's"), std::string::npos) << text;
    EXPECT_EQ(trainer.position().steps, steps);
    std::filesystem::remove_all(folder / "run/step-1");
    (void)trainer.save();
    EXPECT_EQ(trainer.finish_save().size(), 1u);
  });
}

}  // namespace
}  // namespace tessera

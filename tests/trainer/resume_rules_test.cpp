// When a run may resume, from what, and what a run without resume() does to the steps in its
// folder.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/steps/lineage.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::misuse_of;
using testing::run_small;
using testing::TemporaryFolder;

const std::string too_late =
    "resume() comes once, before the first step and save: make a new Trainer";

void save_at(const std::string& folder, std::int64_t steps) {
  run_small({.options = {.checkpoint = {.dir = folder}}}, [steps](Trainer& trainer) {
    (void)trainer.resume();
    (void)testing::losses_of(trainer, steps);
    (void)trainer.save();
  });
}

TEST(ResumeRules, ResumeComesOnceAndFirst) {
  const TemporaryFolder folder;
  save_at(folder / "run", 2);
  const testing::SmallRun run{.options = {.checkpoint = {.dir = folder / "run", .async = true}}};
  run_small(run, [](Trainer& trainer) {
    EXPECT_EQ(trainer.resume().size(), 1u);
    EXPECT_EQ(misuse_of([&] { return trainer.resume(); }), too_late);
    EXPECT_EQ(trainer.step().value().step, 3);  // a refused call changes nothing
    EXPECT_EQ(misuse_of([&] { return trainer.resume(); }), too_late);
  });
  run_small(run, [](Trainer& trainer) {
    (void)trainer.step();
    EXPECT_EQ(misuse_of([&] { return trainer.resume(); }), too_late);
  });
  run_small(run, [](Trainer& trainer) {
    (void)trainer.save();  // in flight
    EXPECT_EQ(misuse_of([&] { return trainer.resume(); }), too_late);
    (void)trainer.finish_save();
  });
}

// The line of a step is its run, and the save that it came from.
TEST(ResumeRules, WithoutResumeARunBeginsALineOfItsOwn) {
  const TemporaryFolder folder;
  save_at(folder / "run", 2);
  run_small({.ranks = 2, .options = {.checkpoint = {.dir = folder / "run"}}}, [](Trainer& trainer) {
    (void)testing::losses_of(trainer, 2);
    const RunEvents events = trainer.save();
    ASSERT_EQ(events.size(), 3u);
    EXPECT_TRUE(std::holds_alternative<events::OtherRun>(events[0]));
    EXPECT_TRUE(std::holds_alternative<events::Saved>(events[1]));
    EXPECT_NE(std::get<events::Warning>(events[2]).text.find("belonged to another run"),
              std::string::npos);
    (void)testing::losses_of(trainer, 3);
    EXPECT_EQ(trainer.save().size(), 1u);
  });
  const checkpoint::StepListing listing = checkpoint::list_committed(folder / "run");
  ASSERT_EQ(listing.steps.size(), 3u);  // by falling commit
  EXPECT_EQ(listing.steps[0].lineage.run, listing.steps[1].lineage.run);
  EXPECT_EQ(listing.steps[0].lineage.parent, listing.steps[1].save_id);
  EXPECT_NE(listing.steps[1].lineage.run, listing.steps[2].lineage.run);
  EXPECT_EQ(listing.steps[1].lineage.parent, "");
}

std::string refused_resume(const testing::SmallRun& run, ErrorCode code) {
  return testing::error_of(
      [&] { run_small(run, [](Trainer& trainer) { (void)trainer.resume(); }); }, code);
}

TEST(ResumeRules, OtherDataIsNamedWithBothValues) {
  const TemporaryFolder folder;
  const std::string dir = folder / "run";
  save_at(dir, 1);
  const auto rows = [](const Context& /*context*/, testing::DroppingNet& net) {
    return tasks::make_tensor_task(net, testing::rows_of_numbers(21),
                                   testing::cross_entropy_of(net), {.seed = 4});
  };
  EXPECT_EQ(
      refused_resume({.options = {.checkpoint = {.dir = dir}}, .make = rows}, ErrorCode::data),
      dir +
          "/step-1: the run there has 22 samples, seed 0 and shuffle true, and this one has "
          "21 samples, seed 4 and shuffle true, so the data order would be another; give it "
          "the same, or begin a new run with checkpoint.resume: never");
}

TEST(ResumeRules, AStepOfAnotherTask) {
  const TemporaryFolder folder;
  const std::string dir = folder / "run";
  const auto made = [](const Context& /*context*/, testing::DroppingNet& /*net*/) {
    return std::make_unique<testing::MadeTask>();
  };
  run_small({.options = {.checkpoint = {.dir = dir}}, .make = made},
            [](Trainer& trainer) { (void)trainer.save(); });
  EXPECT_TRUE(refused_resume({.options = {.checkpoint = {.dir = dir}}}, ErrorCode::data)
                  .starts_with(dir + "/step-0: the step has no 'samples', so it is not of"));
}

struct WideNet : nn::Module {
  WideNet() { in = register_module("in", nn::Linear(testing::sample_width, 32)); }
  Tensor forward(const Tensor& x) const { return in(x); }
  nn::Linear in;
};

// A Trainer has no options for a part of a step.
TEST(ResumeRules, AStepThatDoesNotFitNamesAWayOutOfATrainer) {
  const TemporaryFolder folder;
  save_at(folder / "run", 1);
  WideNet wide;
  const auto make = [&](const Context& /*context*/, testing::DroppingNet& /*net*/) {
    return tasks::make_tensor_task(
        wide, testing::rows_of_numbers(),
        [&](const Tensor& x, const Tensor& y) { return cross_entropy(wide.forward(x), y); });
  };
  const std::string text = refused_resume(
      {.options = {.checkpoint = {.dir = folder / "run"}}, .make = make}, ErrorCode::checkpoint);
  EXPECT_NE(text.find("; make the model as it was saved, or begin a new run with "
                      "checkpoint.resume: never"),
            std::string::npos);
  EXPECT_EQ(text.find("LoadOptions"), std::string::npos);
}

TEST(ResumeRules, AFileIsNoFolderOfCheckpoints) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  const std::string file = folder / "file";
  EXPECT_EQ(refused_resume({.options = {.checkpoint = {.dir = file}}}, ErrorCode::checkpoint),
            "TrainerOptions: checkpoint.dir: rank 0: '" + file +
                "' is not a folder; name a folder for checkpoints");
}

TEST(ResumeRules, ARestartIsReportedBeforeTheStepThatItFound) {
  const TemporaryFolder folder;
  setenv("TESSERA_LAUNCH_ID", "0123456789abcdef", 1);
  save_at(folder / "run", 2);
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  run_small({.options = {.checkpoint = {.dir = folder / "run", .resume = "never"}}},
            [](Trainer& trainer) {
              const RunEvents events = trainer.resume();
              ASSERT_EQ(events.size(), 2u);
              EXPECT_TRUE(std::get<events::Restarted>(events[0]).found_save);
              EXPECT_EQ(std::get<events::Resumed>(events[1]).step, 2);
            });
  unsetenv("TORCHELASTIC_RESTART_COUNT");
  unsetenv("TESSERA_LAUNCH_ID");
}

}  // namespace
}  // namespace tessera

// The memory of a trainer's steps has fixed places, also beside asynchronous saves and evaluations,
// and changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/places/step_statistics.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::DroppingNet;
using testing::run_small;
using testing::TemporaryFolder;

// The losses of twelve steps, the file of the last save, and the places of rank 0.
struct SavedRun {
  std::vector<float> losses;
  StepStatistics memory;
};

SavedRun saved_run(const std::string& folder, bool async) {
  TrainerOptions options{.checkpoint = {.dir = folder, .every = 3, .async = async}};
  SavedRun run;
  run_small({.ranks = 2, .options = options}, [&](Trainer& trainer) {
    (void)trainer.prepare_folder();
    std::vector<float> losses;
    while (trainer.position().steps < 12) {
      losses.push_back(trainer.step().value().loss);
      if (trainer.position().steps % 3 == 0) (void)trainer.save();
    }
    (void)trainer.finish_save();
    if (trainer.context().is_main()) run = {losses, trainer.step_memory()};
  });
  return run;
}

TEST(TrainerMemory, StepsHavePlacesBesideAsynchronousSaves) {
  const TemporaryFolder folder;
  const SavedRun plain = saved_run(folder / "plain", false);
  const SavedRun async = saved_run(folder / "async", true);
  EXPECT_EQ(plain.losses, async.losses);
  for (const SavedRun* run : {&plain, &async}) {
    EXPECT_EQ(run->memory.steps, 12u);
    EXPECT_EQ(run->memory.placed, 9u);
    EXPECT_EQ(run->memory.different, 0u);
    EXPECT_EQ(run->memory.displaced, 0u);
  }
}

// Async saves that run beside placed steps write the state of their own step.
TEST(TrainerMemory, AnAsynchronousSaveHoldsTheValuesOfItsStep) {
  const TemporaryFolder folder;
  const std::vector<float> expected = saved_run(folder / "run", true).losses;
  TrainerOptions options{.checkpoint = {.dir = folder / "run", .every = 3}};
  options.checkpoint.resume = folder / "run/step-9";
  std::vector<float> rest;
  run_small({.ranks = 2, .options = options}, [&](Trainer& trainer) {
    (void)trainer.resume();
    const std::vector<float> losses = testing::losses_of(trainer, 12);
    if (trainer.context().is_main()) rest = losses;
  });
  EXPECT_EQ(rest, std::vector<float>(expected.begin() + 9, expected.end()));
}

// Every second batch of a task has other sizes, so no two steps are equal.
class AlternatingTask : public testing::MadeTask {
 public:
  [[nodiscard]] Tensor loss(const tasks::Prepared& batch, const Context& context) override {
    const Tensor loss = MadeTask::loss(batch, context);
    if (++calls_ % 2 == 0) (void)Tensor::empty({100 * calls_});
    return loss;
  }

 private:
  std::int64_t calls_ = 0;
};

TEST(TrainerMemory, StepsOfChangingSizesHaveNone) {
  run_small(
      {.make = [](const Context&, DroppingNet&) { return std::make_unique<AlternatingTask>(); }},
      [](Trainer& trainer) {
        (void)testing::losses_of(trainer, 10);
        EXPECT_EQ(trainer.step_memory().steps, 10u);
        EXPECT_EQ(trainer.step_memory().placed, 0u);
      });
}

}  // namespace
}  // namespace tessera

// A Trainer with a program's own module, data and tasks.
#include "trainer/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "support/errors.h"
#include "support/one_thread.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::DroppingNet;
using testing::MadeTask;
using testing::rows_of_numbers;

struct RunResult {
  std::vector<float> losses;
  RunEvents resumed, saved;
  std::int64_t next_sample = 0;
};

using Drive = std::function<void(Trainer&, RunResult&)>;

// Rank 0's result of a run with a global batch of 8 samples.
RunResult run_of(int ranks, TrainerOptions options, const Drive& drive, bool made = false) {
  RunResult result;
  launch(ranks, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(3);
    DroppingNet net;
    std::unique_ptr<tasks::Task> task = std::make_unique<MadeTask>();
    if (!made) {
      task = tasks::make_tensor_task(net, rows_of_numbers(), testing::cross_entropy_of(net));
    }
    TrainerOptions own = options;
    if (own.batch_size == 1) own.batch_size = 8 / ranks;
    Trainer trainer(std::move(task), context, own);
    RunResult here;
    drive(trainer, here);
    here.next_sample = trainer.position().data.next.front();
    if (context.is_main()) result = std::move(here);
  });
  return result;
}

// Resumes, trains until a step, and saves.
RunResult train_until(int ranks, const std::string& folder, std::int64_t steps, bool made = false,
                      bool async = false) {
  TrainerOptions options;
  options.steps = steps;
  options.gradient_accumulation_steps = 2;
  options.sharding.param_dtype = bfloat16;
  options.schedule =
      optim::Schedule{.kind = optim::ScheduleKind::linear, .peak = 1e-2, .decay_steps = 20};
  options.checkpoint.dir = folder;
  options.checkpoint.async = async;
  const Drive drive = [steps](Trainer& trainer, RunResult& result) {
    result.resumed = trainer.resume();
    EXPECT_TRUE(trainer.prepare_folder().empty());
    while (trainer.position().steps < steps) result.losses.push_back(trainer.step()->loss);
    result.saved = trainer.save();
    for (RunEvent& event : trainer.finish_save()) result.saved.push_back(std::move(event));
  };
  return run_of(ranks, options, drive, made);
}

void expect_resumes(bool made) {
  const testing::TemporaryFolder folder;
  const RunResult whole = train_until(2, folder / "whole", 7, made);
  ASSERT_EQ(whole.losses.size(), 7u);
  EXPECT_LT(whole.losses.back(), whole.losses.front());
  std::vector<float> losses = train_until(2, folder / "parts", 3, made).losses;
  const RunResult rest = train_until(2, folder / "parts", 7, made);
  losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(rest.next_sample, whole.next_sample);
}

TEST(Trainer, ResumesARunOfTensorsWithTheSameBits) {
  expect_resumes(false);
}

TEST(Trainer, ResumesARunOfAnOwnTaskWithTheSameBits) {
  expect_resumes(true);
}

TEST(Trainer, ResumesOnAnotherNumberOfRanks) {
  const testing::TemporaryFolder folder;
  const RunResult whole = train_until(2, folder / "whole", 7);
  (void)train_until(2, folder / "parts", 3);
  const RunResult rest = train_until(4, folder / "parts", 7);
  ASSERT_EQ(rest.losses.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(rest.losses[i], whole.losses[i + 3], 1e-2);
  EXPECT_EQ(rest.next_sample, whole.next_sample);
}

// An optimizer of the program's own, with its rate as there is no schedule.
TEST(Trainer, TrainsWithTheOptimizerThatAFunctionMakes) {
  const optim::LionOptions lion{.lr = 1e-3};
  const auto losses_with = [](const TrainerOptions& options) {
    const Drive drive = [](Trainer& trainer, RunResult& result) {
      while (trainer.position().steps < 5) {
        const auto metrics = trainer.step();
        EXPECT_EQ(metrics->lr, 1e-3);
        result.losses.push_back(metrics->loss);
      }
    };
    return run_of(2, options, drive, true).losses;
  };
  TrainerOptions by_name, by_function;
  by_name.optimizer = lion;
  by_function.optimizer = [lion](std::vector<nn::NamedParameter> parameters) {
    return std::make_unique<optim::Lion>(std::move(parameters), lion);
  };
  EXPECT_EQ(losses_with(by_function), losses_with(by_name));
  EXPECT_NE(losses_with(by_name), losses_with({}));
  by_function.optimizer = [](std::vector<nn::NamedParameter> /*parameters*/) {
    return std::unique_ptr<optim::Optimizer>();
  };
  EXPECT_EQ(testing::misuse_of([&] { (void)losses_with(by_function); }),
            "the function in TrainerOptions::optimizer returned no optimizer");
}

TEST(Trainer, ReportsWhatItDoesWithFiles) {
  const testing::TemporaryFolder folder;
  const RunResult first = train_until(2, folder / "run", 2);
  EXPECT_TRUE(first.resumed.empty());
  ASSERT_EQ(first.saved.size(), 1u);
  EXPECT_EQ(std::get<events::Saved>(first.saved[0]).folder, folder / "run/step-2");
  const RunResult second = train_until(2, folder / "run", 3, false, true);
  ASSERT_EQ(second.resumed.size(), 1u);
  const auto& resumed = std::get<events::Resumed>(second.resumed[0]);
  EXPECT_EQ(resumed.folder, folder / "run/step-2");
  EXPECT_EQ(resumed.step, 2);
  ASSERT_EQ(second.saved.size(), 2u);
  EXPECT_EQ(std::get<events::SaveBegun>(second.saved[0]).step, 3);
  EXPECT_TRUE(std::get<events::Saved>(second.saved[1]).seconds.has_value());
}

TEST(Trainer, StopsWithinAStepAfterASignal) {
  TrainerOptions options;
  options.gradient_accumulation_steps = 2;
  int signal = 15;
  options.signals = [&signal] { return RunSignals{.stop = signal}; };
  (void)run_of(1, options, [&signal](Trainer& trainer, RunResult& /*result*/) {
    EXPECT_FALSE(trainer.step().has_value());
    EXPECT_EQ(trainer.interruption(), 15);
    EXPECT_EQ(trainer.position().steps, 0);
    signal = 0;
    EXPECT_TRUE(trainer.step().has_value());
    EXPECT_EQ(trainer.interruption(), 0);
    EXPECT_EQ(trainer.position().steps, 1);
  });
}

std::string refusal_of(const TrainerOptions& options) {
  return testing::error_of(
      [&] {
        return run_of(1, options,
                      [](Trainer& trainer, RunResult& /*result*/) { (void)trainer.resume(); });
      },
      options.checkpoint.resume == "auto" ? ErrorCode::configuration : ErrorCode::checkpoint);
}

TEST(Trainer, RefusesOptionsByTheirNames) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(refusal_of({.batch_size = -1}),
            "TrainerOptions: batch_size is -1: it must be at least 1");
  EXPECT_NE(refusal_of({.checkpoint = {.resume = folder.path().string()}})
                .find("TrainerOptions: checkpoint.resume: " + folder.path().string()),
            std::string::npos);
}

TEST(Trainer, RefusesOtherData) {
  const testing::TemporaryFolder folder;
  (void)train_until(1, folder / "run", 1);
  const Drive resume = [](Trainer& trainer, RunResult& /*result*/) { (void)trainer.resume(); };
  TrainerOptions options;
  options.checkpoint.dir = folder / "run";
  options.data.drop_last = true;
  EXPECT_NE(testing::error_of([&] { return run_of(1, options, resume); }, ErrorCode::configuration)
                .find("data.drop_last false"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera

// Planted steps that must not be used: what a run does about them is the same on every rank and
// under every strategy, and costs the data alone.
#include "trainer/spikes.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

constexpr float planted_nan = std::numeric_limits<float>::quiet_NaN();

// The samples of a run: number n is taken from place n + gap, from the number `gap_at` on, so that
// a run can leave out what another one skips. The samples [bad_from, bad_to) have `bad` in them.
struct Plant {
  std::int64_t bad_from = -1, bad_to = -1;
  float bad = 0;
  std::int64_t gap_at = 1 << 30, gap = 0;
};

constexpr std::int64_t global_batch = 8;  // of all ranks
constexpr std::int64_t no_step = -1;

class PlantedTask : public testing::MadeTask {
 public:
  explicit PlantedTask(const Plant& plant) : plant_(plant) {}

  [[nodiscard]] nn::Module& module() override { return net_; }
  [[nodiscard]] std::unique_ptr<tasks::Prepared> prepare(
      std::size_t /*data_set*/, std::span<const std::int64_t> samples) const override {
    auto made = std::make_unique<Numbers>();
    made->samples = made->tokens = static_cast<std::int64_t>(samples.size());
    for (std::int64_t sample : samples) {
      if (sample >= plant_.gap_at) sample += plant_.gap;
      const bool is_bad = sample >= plant_.bad_from && sample < plant_.bad_to;
      const std::int64_t row = sample % testing::all_samples;
      for (std::int64_t i = 0; i < testing::sample_width; ++i) {
        made->values.push_back(testing::value_of(row, i) * (is_bad ? plant_.bad : 1));
      }
      made->targets.push_back(static_cast<std::int32_t>(row % testing::sample_classes));
    }
    return made;
  }
  [[nodiscard]] Tensor loss(const tasks::Prepared& prepared, const Context&) override {
    const auto& numbers = dynamic_cast<const Numbers&>(prepared);
    return cross_entropy(
        net_.forward(Tensor::from(numbers.values, {numbers.samples, testing::sample_width})),
        Tensor::from(numbers.targets, {numbers.samples}));
  }
  [[nodiscard]] bool evaluates() const override { return true; }
  // The mean loss of all samples, none of which is bad.
  [[nodiscard]] tasks::Evaluation evaluate(const Context&, std::int64_t) override {
    const data::TensorDataset rows = testing::rows_of_numbers();
    return {{{"valid_loss", cross_entropy(net_.forward(rows.inputs), rows.targets).item()}}};
  }

 private:
  struct Net : nn::Module {
    Net() {
      in = register_module("in", nn::Linear(testing::sample_width, 16));
      out = register_module("out", nn::Linear(16, testing::sample_classes));
    }
    Tensor forward(const Tensor& x) const { return out(relu(in(x))); }
    nn::Linear in, out;
  };
  Plant plant_;
  Net net_;
};

struct Outcome {
  double loss = 0;  // of all samples, at the end
  std::vector<Spike> spikes;
  std::int64_t next_sample = 0;
  std::vector<std::int64_t> evaluations;
};

struct PlantedRun {
  int ranks = 2;
  std::int64_t steps = 60;
  Plant plant = {};
  TrainerOptions options = {};
  std::int64_t stop_at = no_step;  // ends here, after a save
};

TrainerOptions with_spikes(SpikeAction action, const std::string& folder = {}) {
  TrainerOptions options;
  options.optimizer = optim::AdamWOptions{.lr = 1e-2};
  options.spikes = {.action = action, .sigma = 5, .window = 8};
  options.checkpoint.dir = folder;
  options.checkpoint.every = folder.empty() ? 0 : 10;
  return options;
}

// Rank 0's outcome, after a check that the others have the same.
Outcome outcome_of(const PlantedRun& run) {
  std::vector<Outcome> all(static_cast<std::size_t>(run.ranks));
  testing::SmallRun small{.ranks = run.ranks, .options = run.options};
  small.options.steps = run.steps;
  small.options.batch_size = global_batch / run.ranks / small.options.gradient_accumulation_steps;
  small.make = [&](const Context&, testing::DroppingNet&) {
    return std::make_unique<PlantedTask>(run.plant);
  };
  testing::run_small(small, [&](Trainer& trainer) {
    Outcome& mine = all[static_cast<std::size_t>(trainer.context().rank())];
    if (!run.options.checkpoint.dir.empty()) (void)trainer.resume();
    while (trainer.position().steps < run.steps && trainer.position().steps != run.stop_at) {
      const StepMetrics step = trainer.step().value();
      if (step.spike) mine.spikes.push_back(*step.spike);
      const bool due = trainer.saves() && trainer.position().steps == step.step &&
                       step.step % run.options.checkpoint.every == 0;
      if (due) (void)trainer.save();
      (void)trainer.finished_save();
    }
    if (run.stop_at != no_step) (void)trainer.save();
    (void)trainer.finish_save();
    mine.loss = trainer.evaluate().best_by();
    mine.next_sample = trainer.position().data.next.front();
  });
  for (const Outcome& other : all) {
    EXPECT_EQ(other.loss, all[0].loss);
    EXPECT_EQ(other.next_sample, all[0].next_sample);
    EXPECT_EQ(other.spikes.size(), all[0].spikes.size());
    for (std::size_t i = 0; i < std::min(other.spikes.size(), all[0].spikes.size()); ++i) {
      EXPECT_EQ(other.spikes[i].step, all[0].spikes[i].step);
      EXPECT_EQ(other.spikes[i].done, all[0].spikes[i].done);
      EXPECT_EQ(other.spikes[i].limit, all[0].spikes[i].limit);
    }
  }
  return all[0];
}

// Bad values in the last sample of step 26's batch alone: one rank has them.
Plant planted(float bad) {
  return {.bad_from = 26 * global_batch - 1, .bad_to = 26 * global_batch, .bad = bad};
}

constexpr float huge = 3e3f;

// Skipping leaves everything but the data and the number of steps as it was: the bits are those of
// a run whose data never had the batch, one step shorter.
TEST(PlantedSpike, IsSkippedAsIfTheBatchDidNotExist) {
  for (const float bad : {planted_nan, huge}) {
    const Outcome skipped =
        outcome_of({.plant = planted(bad), .options = with_spikes(SpikeAction::skip)});
    ASSERT_EQ(skipped.spikes.size(), 1u) << bad;
    EXPECT_EQ(skipped.spikes[0].step, 26);
    EXPECT_EQ(skipped.spikes[0].done, SpikeAction::skip);
    EXPECT_EQ(skipped.spikes[0].limit.has_value(), bad == huge);
    EXPECT_EQ(skipped.next_sample, 60 * global_batch);
    const Outcome without = outcome_of({.steps = 59,
                                        .plant = {.gap_at = 25 * global_batch, .gap = global_batch},
                                        .options = with_spikes(SpikeAction::skip)});
    EXPECT_TRUE(without.spikes.empty());
    EXPECT_EQ(skipped.loss, without.loss) << bad;
  }
}

// The state is that of step 20, and the data of steps 21 to 26 does not come again.
TEST(PlantedSpike, IsRolledBackToTheNewestCheckpoint) {
  for (const bool async : {false, true}) {
    for (const float bad : {planted_nan, huge}) {
      const testing::TemporaryFolder folder;
      PlantedRun run{.plant = planted(bad),
                     .options = with_spikes(SpikeAction::rollback, folder / "a")};
      run.options.checkpoint.async = async;
      const Outcome back = outcome_of(run);
      ASSERT_EQ(back.spikes.size(), 1u) << bad;
      EXPECT_EQ(back.spikes[0].step, 26);
      EXPECT_EQ(back.spikes[0].done, SpikeAction::rollback);
      EXPECT_EQ(back.spikes[0].to, 20);
      EXPECT_EQ(back.next_sample, (60 + 6) * global_batch);
      const Outcome without =
          outcome_of({.plant = {.gap_at = 20 * global_batch, .gap = 6 * global_batch},
                      .options = with_spikes(SpikeAction::skip)});
      EXPECT_EQ(back.loss, without.loss) << bad;
    }
  }
}

// The required end: within 1 % of the clean run's loss, the same bits under every strategy.
TEST(PlantedSpike, CostsNoLossUnderAnyStrategy) {
  const double clean = outcome_of({.options = with_spikes(SpikeAction::stop)}).loss;
  for (const float bad : {planted_nan, huge}) {
    for (const SpikeAction action : {SpikeAction::skip, SpikeAction::rollback}) {
      std::vector<double> losses;
      for (const StrategyRow& row : strategy_table) {
        const testing::TemporaryFolder folder;
        PlantedRun run{
            .ranks = 4, .plant = planted(bad), .options = with_spikes(action, folder / "a")};
        run.options.sharding.strategy = row.strategy;
        run.options.sharding.group_size = 2;
        const Outcome found = outcome_of(run);
        ASSERT_EQ(found.spikes.size(), 1u) << row.name;
        EXPECT_EQ(found.spikes[0].step, 26) << row.name;
        EXPECT_EQ(found.spikes[0].done, action) << row.name;
        EXPECT_NEAR(found.loss, clean, 0.01 * clean) << row.name;
        losses.push_back(found.loss);
        EXPECT_EQ(losses.back(), losses.front()) << row.name;
      }
    }
  }
}

TEST(PlantedSpike, IsFoundOnceForAllMicroBatches) {
  PlantedRun run{.plant = planted(planted_nan), .options = with_spikes(SpikeAction::skip)};
  run.options.gradient_accumulation_steps = 2;
  for (const bool sync : {true, false}) {
    run.options.sync_each_batch = sync;
    const Outcome found = outcome_of(run);
    ASSERT_EQ(found.spikes.size(), 1u);
    EXPECT_EQ(found.spikes[0].step, 26);
    EXPECT_EQ(found.next_sample, 60 * global_batch);
  }
}

// The losses before the interruption decide the limit after it.
TEST(PlantedSpike, IsFoundAfterAResumeAsWithoutOne) {
  const testing::TemporaryFolder folder;
  PlantedRun run{.plant = planted(huge), .options = with_spikes(SpikeAction::skip, folder / "a")};
  const Outcome whole = outcome_of(run);
  run.options.checkpoint.dir = folder / "b";
  run.stop_at = 25;
  EXPECT_TRUE(outcome_of(run).spikes.empty());
  run.stop_at = no_step;
  const Outcome resumed = outcome_of(run);
  ASSERT_EQ(resumed.spikes.size(), 1u);
  ASSERT_EQ(whole.spikes.size(), 1u);
  EXPECT_EQ(resumed.spikes[0].limit, whole.spikes[0].limit);
  EXPECT_EQ(resumed.loss, whole.loss);
}

TEST(PlantedSpike, IsSkippedWhereThereIsNoCheckpointYet) {
  const testing::TemporaryFolder folder;
  PlantedRun run{.plant = planted(planted_nan),
                 .options = with_spikes(SpikeAction::rollback, folder / "a")};
  run.options.checkpoint.every = 30;
  const Outcome found = outcome_of(run);
  ASSERT_EQ(found.spikes.size(), 1u);
  EXPECT_EQ(found.spikes[0].done, SpikeAction::skip);
}

std::string error_of(const PlantedRun& run, ErrorCode code = ErrorCode::numeric) {
  return testing::error_of([&] { (void)outcome_of(run); }, code);
}

TEST(PlantedSpike, StopsARunThatIsToStop) {
  PlantedRun run{.plant = planted(huge), .options = with_spikes(SpikeAction::stop)};
  const std::string message = error_of(run);
  EXPECT_NE(message.find("step 26: loss "), std::string::npos) << message;
  EXPECT_NE(message.find(", the limit of spike_sigma 5; lower optimizer.lr, raise spike_sigma, or "
                         "resume from the last checkpoint"),
            std::string::npos)
      << message;
  run.options.spikes.sigma.reset();
  EXPECT_TRUE(outcome_of(run).spikes.empty());
  run.plant.bad = planted_nan;
  EXPECT_NE(error_of(run).find("step 26: loss nan and gradient norm nan are not finite; lower"),
            std::string::npos);
}

// Ten in a row: the model itself, or all of the data, is not usable.
TEST(PlantedSpike, EndsTheRunIfNothingElseComes) {
  PlantedRun run{.options = with_spikes(SpikeAction::skip)};
  run.plant = {.bad_from = 25 * global_batch, .bad_to = 1 << 30, .bad = planted_nan};
  EXPECT_NE(error_of(run).find("step 35: loss nan and gradient norm nan are not finite, the 10th "
                               "such step without progress; "),
            std::string::npos);
  const testing::TemporaryFolder folder;
  run.options = with_spikes(SpikeAction::rollback, folder / "a");
  const std::string message = error_of(run);
  EXPECT_NE(message.find(", the 10th such step without progress; "), std::string::npos) << message;
}

// The scale is not to blame for a loss that is not finite itself.
TEST(PlantedSpike, DoesNotLowerTheLossScale) {
  TrainerOptions options = with_spikes(SpikeAction::skip);
  options.sharding.param_dtype = float16;
  options.batch_size = global_batch / 2;
  testing::SmallRun small{.ranks = 2, .options = options};
  small.make = [](const Context&, testing::DroppingNet&) {
    return std::make_unique<PlantedTask>(planted(planted_nan));
  };
  testing::run_small(small, [&](Trainer& trainer) {
    double before = 0;
    std::int64_t overflowed = 0;
    while (trainer.position().steps < 25) {
      const StepMetrics step = trainer.step().value();
      before = step.loss_scale.value();
      overflowed = step.skipped_steps;
    }
    const StepMetrics bad = trainer.step().value();
    ASSERT_TRUE(bad.spike);
    EXPECT_EQ(bad.skipped_steps, overflowed);
    EXPECT_EQ(trainer.step().value().loss_scale, before);
  });
}

TEST(PlantedSpike, OptionsThatCannotWorkAreRefused) {
  const auto refusal = [](const std::function<void(TrainerOptions&)>& change) {
    PlantedRun run{.ranks = 1, .options = with_spikes(SpikeAction::skip)};
    change(run.options);
    return error_of(run, ErrorCode::configuration);
  };
  EXPECT_EQ(refusal([](TrainerOptions& o) { o.spikes.sigma = 0; }),
            "TrainerOptions: spikes.sigma is 0: it must be a finite number above 0");
  EXPECT_EQ(refusal([](TrainerOptions& o) { o.spikes.sigma = planted_nan; }),
            "TrainerOptions: spikes.sigma is nan: it must be a finite number above 0");
  EXPECT_EQ(refusal([](TrainerOptions& o) { o.spikes.window = 1; }),
            "TrainerOptions: spikes.window is 1: it must be from 2 to 10000");
  EXPECT_EQ(refusal([](TrainerOptions& o) { o.spikes.action = SpikeAction::rollback; }),
            "TrainerOptions: spikes.action is rollback: it needs checkpoint.dir and "
            "checkpoint.every");
}

}  // namespace
}  // namespace tessera

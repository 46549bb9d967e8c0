// A run whose call has failed, or whose step was abandoned, never goes on with other numbers.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/errors.h"
#include "support/temporary_folder.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::misuse_of;
using testing::run_small;

// A loss that does something else in one of its calls.
testing::SmallRun with_loss(TrainerOptions options, int call,
                            const std::function<Tensor(const Tensor&)>& instead) {
  return {.options = std::move(options), .make = [=](const Context& /*context*/, auto& net) {
            return tasks::make_tensor_task(net, testing::rows_of_numbers(),
                                           [=, loss = testing::cross_entropy_of(net), calls = 0](
                                               const Tensor& x, const Tensor& y) mutable {
                                             return ++calls == call ? instead(loss(x, y))
                                                                    : loss(x, y);
                                           });
          }};
}

TEST(FailedCalls, AStepThatThrewEndsTheRun) {
  const testing::TemporaryFolder folder;
  const auto thrower = [](const Tensor& /*loss*/) -> Tensor {
    throw std::runtime_error("bad row");
  };
  run_small(with_loss({.checkpoint = {.dir = folder / "run"}}, 3, thrower), [](Trainer& trainer) {
    (void)testing::losses_of(trainer, 2);
    EXPECT_THROW((void)trainer.step(), std::runtime_error);
    const std::string failed =
        ": an earlier step() failed ('bad row'): make a new Trainer and resume() from the last "
        "checkpoint";
    EXPECT_EQ(misuse_of([&] { return trainer.step(); }), "step()" + failed);
    EXPECT_EQ(misuse_of([&] { return trainer.save(); }), "save()" + failed);
    EXPECT_EQ(misuse_of([&] { return trainer.export_weights(); }), "export_weights()" + failed);
    EXPECT_EQ(trainer.position().steps, 2);
  });
}

// The ranks agree on it, and it leaves the parameters unchanged: the last step can be saved.
TEST(FailedCalls, AfterANumericErrorTheLastStepMayBeSaved) {
  const testing::TemporaryFolder folder;
  const auto nan = [](const Tensor& loss) {
    return loss * std::numeric_limits<double>::quiet_NaN();
  };
  const TrainerOptions options{.checkpoint = {.dir = folder / "run"}};
  run_small(with_loss(options, 3, nan), [](Trainer& trainer) {
    (void)testing::losses_of(trainer, 2);
    const std::string text = testing::error_of([&] { return trainer.step(); }, ErrorCode::numeric);
    EXPECT_NE(text.find("lower optimizer.lr, or resume"), std::string::npos) << text;
    EXPECT_EQ(misuse_of([&] { return trainer.step(); }).find("step(): an earlier step() failed"),
              0u);
    (void)trainer.save();
  });
  std::vector<float> whole, resumed;
  run_small({}, [&](Trainer& trainer) { whole = testing::losses_of(trainer, 4); });
  run_small({.options = options}, [&](Trainer& trainer) {
    (void)trainer.resume();
    EXPECT_EQ(trainer.position().steps, 2);
    resumed = testing::losses_of(trainer, 4);
  });
  EXPECT_EQ(resumed, std::vector<float>(whole.begin() + 2, whole.end()));
}

TEST(FailedCalls, ANumericErrorNamesTheGivenLearningRate) {
  const auto infinite = [](const Tensor& loss) {
    return loss * std::numeric_limits<double>::infinity();
  };
  run_small(with_loss({.schedule = optim::Schedule{}}, 1, infinite), [](Trainer& trainer) {
    const std::string text = testing::error_of([&] { return trainer.step(); }, ErrorCode::numeric);
    EXPECT_NE(text.find("lower schedule.peak, or resume"), std::string::npos) << text;
  });
}

// A step that ended for a signal takes its batches again.
TEST(FailedCalls, AnAbandonedStepComesAgain) {
  TrainerOptions options{.gradient_accumulation_steps = 2};
  std::vector<float> whole, rest;
  run_small({.options = options},
            [&](Trainer& trainer) { whole = testing::losses_of(trainer, 3); });
  int signal = 15;
  options.signals = [&signal] { return RunSignals{.stop = signal}; };
  run_small({.options = options}, [&](Trainer& trainer) {
    EXPECT_FALSE(trainer.step().has_value());
    signal = 0;
    rest = testing::losses_of(trainer, 3);
  });
  EXPECT_EQ(rest, whole);
}

class EvaluatedTask final : public testing::MadeTask {
 public:
  [[nodiscard]] bool evaluates() const override { return true; }
  [[nodiscard]] tasks::Evaluation evaluate(const Context& /*context*/,
                                           std::int64_t /*batch_size*/) override {
    EXPECT_FALSE(module().is_training());
    if (throws_) throw std::runtime_error("no file");
    throws_ = true;
    return {.numbers = {{"loss", 1.0}}};
  }

 private:
  bool throws_ = false;
};

TEST(FailedCalls, AnEvaluationLeavesTheModeAndTheLastStep) {
  const testing::TemporaryFolder folder;
  const auto make = [](const Context& /*context*/, testing::DroppingNet& /*net*/) {
    return std::make_unique<EvaluatedTask>();
  };
  run_small({.options = {.checkpoint = {.dir = folder / "run"}}, .make = make},
            [](Trainer& trainer) {
              (void)trainer.step();
              EXPECT_EQ(trainer.evaluate().best_by(), 1.0);
              EXPECT_THROW((void)trainer.evaluate(), std::runtime_error);
              EXPECT_EQ(misuse_of([&] { return trainer.step(); }).find("step(): an earlier"), 0u);
              (void)trainer.save();
            });
}

// An evaluation that fails leaves neither the averages in the place of the weights nor the
// optimizer in the state of an evaluation.
TEST(FailedCalls, AnEvaluationOfAveragesThatFailsMayBeRepeatedAndLosesNothing) {
  const testing::TemporaryFolder folder;
  const auto make = [](const Context& /*context*/, testing::DroppingNet& /*net*/) {
    return std::make_unique<EvaluatedTask>();
  };
  const TrainerOptions options{.optimizer = optim::ScheduleFreeAdamWOptions{.lr = 0.05},
                               .checkpoint = {.dir = folder / "run"}};
  std::vector<float> whole, resumed;
  run_small({.options = options, .make = make},
            [&](Trainer& trainer) { whole = testing::losses_of(trainer, 4); });
  run_small({.options = options, .make = make}, [&](Trainer& trainer) {
    (void)testing::losses_of(trainer, 2);
    (void)trainer.evaluate();
    EXPECT_THROW((void)trainer.evaluate(), std::runtime_error);
    EXPECT_THROW((void)trainer.evaluate(), std::runtime_error);
    (void)trainer.save();
  });
  run_small({.options = options, .make = make}, [&](Trainer& trainer) {
    (void)trainer.resume();
    EXPECT_EQ(trainer.position().steps, 2);
    resumed = testing::losses_of(trainer, 4);
  });
  EXPECT_EQ(resumed, std::vector<float>(whole.begin() + 2, whole.end()));
}

class LongEvaluation final : public testing::MadeTask {
 public:
  [[nodiscard]] bool evaluates() const override { return true; }
  [[nodiscard]] tasks::Evaluation evaluate(const Context& /*context*/,
                                           std::int64_t /*batch_size*/) override {
    for (batches_ = 0; batches_ < 100; ++batches_) between_batches();
    return {.numbers = {{"loss", 1.0}}};
  }
  [[nodiscard]] int batches() const { return batches_; }

 private:
  int batches_ = 0;
};

// The signal reaches one rank, between two batches of an evaluation.
TEST(FailedCalls, AnEvaluationEndsForASignalOnAllRanksAtOnce) {
  const auto make = [](const Context& /*context*/, testing::DroppingNet& /*net*/) {
    return std::make_unique<LongEvaluation>();
  };
  std::atomic<int> looks = 0;
  std::atomic<int> signal = 15;
  const auto change = [&](const Context& context, TrainerOptions& options) {
    if (context.rank() != 1) return;
    options.signals = [&] { return RunSignals{.stop = ++looks > 40 ? signal.load() : 0}; };
  };
  run_small({.ranks = 2, .make = make, .change = change}, [&](Trainer& trainer) {
    const auto& task = dynamic_cast<const LongEvaluation&>(trainer.task());
    EXPECT_TRUE(trainer.evaluate().numbers.empty());
    EXPECT_EQ(trainer.interruption(), 15);
    EXPECT_EQ(task.batches(), 40);
    // A call that ended so is not one that failed.
    signal = 0;
    EXPECT_EQ(trainer.evaluate().best_by(), 1.0);
    EXPECT_TRUE(trainer.step().has_value());
  });
}

// Reads one batch for longer than ranks wait for one another.
class SlowTask final : public testing::MadeTask {
 public:
  explicit SlowTask(bool slow) : slow_(slow) {}
  [[nodiscard]] std::unique_ptr<tasks::Prepared> prepare(
      std::size_t data_set, std::span<const std::int64_t> samples) const override {
    if (slow_ && samples.front() < 8) std::this_thread::sleep_for(std::chrono::seconds(3));
    return MadeTask::prepare(data_set, samples);
  }

 private:
  bool slow_;
};

TEST(FailedCalls, SlowDataIsNoDeadlock) {
  setenv("TESSERA_STANDSTILL_TIMEOUT", "1", 1);
  const auto make = [](const Context& context, testing::DroppingNet& /*net*/) {
    return std::make_unique<SlowTask>(context.rank() == 1);
  };
  run_small({.ranks = 2, .make = make},
            [](Trainer& trainer) { EXPECT_EQ(testing::losses_of(trainer, 2).size(), 2u); });
  unsetenv("TESSERA_STANDSTILL_TIMEOUT");
}

}  // namespace
}  // namespace tessera

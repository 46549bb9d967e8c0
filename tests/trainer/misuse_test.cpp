// What a Trainer refuses: options, tasks, losses and data that cannot work.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "support/errors.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

using testing::misuse_of;
using testing::run_small;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::string refused_option(const std::function<void(TrainerOptions&)>& change) {
  const auto change_options = [&](const Context& /*context*/, TrainerOptions& options) {
    change(options);
  };
  return testing::error_of(
      [&] { run_small({.change = change_options}, [](Trainer& /*trainer*/) {}); },
      ErrorCode::configuration);
}

TEST(TrainerMisuse, OptionsAreRefusedByName) {
  using Options = TrainerOptions;
  const std::string not_negative = ": it must be a finite number that is not negative";
  const auto cosine = [](optim::Schedule schedule) {
    schedule.kind = optim::ScheduleKind::cosine;
    return schedule;
  };
  const std::vector<std::pair<std::function<void(Options&)>, std::string>> cases = {
      {[](Options& o) { o.batch_size = 0; }, "batch_size is 0: it must be at least 1"},
      {[](Options& o) { o.gradient_accumulation_steps = -1; },
       "gradient_accumulation_steps is -1: it must be at least 1"},
      {[](Options& o) { o.steps = -1; }, "steps is -1: it must be at least 0"},
      {[](Options& o) { o.max_grad_norm = -not_a_number; }, "max_grad_norm is nan: "},
      {[](Options& o) { o.optimizer = optim::AdamWOptions{.lr = not_a_number}; },
       "optimizer.lr is nan" + not_negative},
      {[](Options& o) { o.optimizer = optim::AdamWOptions{.beta2 = 1}; },
       "optimizer.beta2 is 1: it must be at least 0 and below 1"},
      {[](Options& o) { o.optimizer = optim::AdamWOptions{.eps = -1}; },
       "optimizer.eps is -1" + not_negative},
      {[](Options& o) { o.optimizer = optim::LionOptions{.beta1 = 1}; },
       "optimizer.beta1 is 1: it must be at least 0 and below 1"},
      {[](Options& o) { o.optimizer = optim::MuonOptions{.momentum = 1}; },
       "optimizer.momentum is 1: it must be at least 0 and below 1"},
      {[](Options& o) { o.optimizer = optim::MuonOptions{.ns_steps = 0}; },
       "optimizer.ns_steps is 0: it must be at least 1"},
      {[](Options& o) { o.optimizer = optim::MuonOptions{.products = float16}; },
       "optimizer.products is float16: it is bfloat16 or float32"},
      {[](Options& o) { o.optimizer = optim::MuonOptions{.lr = 0, .adamw_lr = 0.5}; },
       "optimizer.adamw_lr is 0.5: it is kept as a multiple of lr, which is 0"},
      {[](Options& o) { o.optimizer = optim::ScheduleFreeAdamWOptions{.r = -1}; },
       "optimizer.r is -1" + not_negative},
      {[](Options& o) { o.optimizer = optim::AdafactorOptions{.beta2_decay = 0.5}; },
       "optimizer.beta2_decay is 0.5: it cannot be positive"},
      {[](Options& o) { o.optimizer = optim::AdafactorOptions{.eps1 = 0}; },
       "optimizer.eps1 is 0: its square must be a normal number of fp32: at least 1.1e-19"},
      {[](Options& o) { o.optimizer = optim::AdafactorOptions{.clip_threshold = 0.5}; },
       "optimizer.clip_threshold is 0.5: it must be at least 1"},
      {[](Options& o) { o.optimizer = optim::OptimizerFactory{}; },
       "optimizer is an empty function: it must make an optimizer"},
      {[](Options& o) { o.optimizer = optim::SgdOptions{.weight_decay = -1}; },
       "optimizer.weight_decay is -1" + not_negative},
      {[](Options& o) { o.optimizer = optim::SgdOptions{.nesterov = true}; },
       "optimizer.nesterov is true: it needs a momentum and no dampening"},
      {[](Options& o) {
         o.optimizer = optim::AdamWOptions{.groups = {{"in", -1}}};
       },
       "optimizer.groups[0].lr_scale is -1" + not_negative},
      {[&](Options& o) { o.schedule = cosine({.peak = -1}); },
       "schedule.peak is -1" + not_negative},
      {[&](Options& o) { o.schedule = cosine({.minimum = 1}); },
       "schedule.minimum is 1: it must be at most schedule.peak, 0.001"},
      {[&](Options& o) { o.schedule = cosine({}); }, "schedule.decay_steps is 0: cosine needs"},
      {[&](Options& o) { o.schedule = cosine({.warmup_steps = 10, .decay_steps = 5}); },
       "schedule.warmup_steps is 10: it must be below schedule.decay_steps, 5"},
      {[](Options& o) {
         o.schedule = optim::Schedule{
             .kind = optim::ScheduleKind::wsd_linear, .decay_steps = 5, .decay_start = 5};
       },
       "schedule.decay_start is 5: it must be at least schedule.warmup_steps, 0, and below "
       "schedule.decay_steps, 5"},
      {[&](Options& o) { o.schedule = cosine({.decay_steps = 5, .power = 0}); },
       "schedule.power is 0: it must be a finite number above 0"},
      {[&](Options& o) { o.schedule = cosine({.decay_steps = 5, .cycles = 0}); },
       "schedule.cycles is 0: it must be at least 1"},
      {[](Options& o) { o.data = {.even_batches = true, .drop_last = true}; },
       "data.even_batches is true: data.drop_last leaves out"},
      {[](Options& o) { o.data.samples = {5}; }, "data.samples is set: the task gives them"},
      {[](Options& o) { o.pruning = PruningOptions{.sparsity = 1}; },
       "pruning.sparsity is 1: it must be above 0 and below 1"},
      {[](Options& o) {
         o.pruning = PruningOptions{.method = PruneMethod::two_four, .sparsity = 0.25};
       },
       "pruning.sparsity is 0.25: it is 0.5 for 2:4"},
      {[](Options& o) { o.pruning = PruningOptions{.begin = 0}; },
       "pruning.begin is 0: it must be at least 1"},
      {[](Options& o) { o.pruning = PruningOptions{.begin = 3, .end = 2}; },
       "pruning.end is 2: it must be at least 3"},
      {[](Options& o) { o.pruning = PruningOptions{}; },
       "pruning.weights is empty: it names the weights to prune"},
      {[](Options& o) { o.checkpoint.every = -2; }, "checkpoint.every is -2: "},
      {[](Options& o) { o.checkpoint.resume = ""; }, "checkpoint.resume is \"\": it must be"},
      {[](Options& o) { o.checkpoint.save.keep = -2; }, "checkpoint.save.keep is -2: "},
      {[](Options& o) { o.checkpoint.save.keep_best = -2; }, "checkpoint.save.keep_best is -2: "},
      {[](Options& o) { o.checkpoint.save.step = 7; },
       "checkpoint.save.step is 7: the Trainer sets it; leave it out"},
      {[](Options& o) { o.checkpoint.save.score = 0.5; }, "checkpoint.save.score is 0.5: "},
  };
  for (const auto& [change, message] : cases) {
    EXPECT_TRUE(refused_option(change).starts_with("TrainerOptions: " + message)) << message;
  }
  const std::string averages = refused_option([](Options& o) {
    o.optimizer = optim::ScheduleFreeAdamWOptions{};
    o.pruning = PruningOptions{.weights = {{"net.weight"}}};
  });
  EXPECT_TRUE(averages.starts_with("pruning: the optimizer saves averages")) << averages;
}

std::string refused_in_a_step(
    const std::function<std::unique_ptr<tasks::Task>(const Context&, testing::DroppingNet&)>&
        make) {
  return misuse_of(
      [&] { run_small({.make = make}, [](Trainer& trainer) { (void)trainer.step(); }); });
}

TEST(TrainerMisuse, LossesThatCannotBeTrained) {
  using testing::DroppingNet;
  const auto refused = [](const std::function<Tensor(DroppingNet&, const Tensor&)>& loss) {
    return refused_in_a_step([&](const Context& /*context*/, DroppingNet& net) {
      return tasks::make_tensor_task(
          net, testing::rows_of_numbers(),
          [&](const Tensor& x, const Tensor& /*y*/) { return loss(net, x); });
    });
  };
  EXPECT_EQ(refused([](DroppingNet& net, const Tensor& x) { return net.forward(x); }),
            "the task's loss has the shape [8, 3], and a loss is one number; take the mean, as "
            "ts::mean(loss)");
  EXPECT_EQ(refused([](DroppingNet& /*net*/, const Tensor& /*x*/) { return Tensor(); }),
            "the task's loss is an undefined tensor; return the mean loss of the batch");
  const std::string constant = "the task's loss does not depend on a parameter that is trained";
  EXPECT_TRUE(
      refused([](DroppingNet& /*net*/, const Tensor& x) { return mean(x); }).starts_with(constant));
  EXPECT_TRUE(refused([](DroppingNet& net, const Tensor& x) {
                return mean(net.forward(x)).detach();
              }).starts_with(constant));
}

TEST(TrainerMisuse, TensorsThatAreNoDataSet) {
  testing::DroppingNet net;
  const auto refused = [&](const data::TensorDataset& samples) {
    return misuse_of(
        [&] { return tasks::make_tensor_task(net, samples, testing::cross_entropy_of(net)); });
  };
  const data::TensorDataset good = testing::rows_of_numbers();
  EXPECT_EQ(
      refused({good.inputs, testing::rows_of_numbers(21).targets}),
      "a data set whose inputs have 22 samples and whose targets have 21; sample i is row i of "
      "both");
  EXPECT_EQ(refused({good.inputs, {}}), "a data set whose targets are an undefined tensor");
  EXPECT_TRUE(refused({Tensor::scalar(1), good.targets})
                  .starts_with("a data set whose inputs are a single number"));
  EXPECT_TRUE(misuse_of([&] {
                return tasks::make_tensor_task(net, good, nullptr);
              }).starts_with("make_tensor_task: the loss is an empty function"));
}

class StrangeTask final : public testing::MadeTask {
 public:
  explicit StrangeTask(std::vector<std::int64_t> samples) : samples_(std::move(samples)) {}
  [[nodiscard]] std::vector<std::int64_t> samples_per_epoch() const override { return samples_; }
  [[nodiscard]] std::unique_ptr<tasks::Prepared> prepare(
      std::size_t /*data_set*/, std::span<const std::int64_t> /*samples*/) const override {
    return nullptr;
  }

 private:
  std::vector<std::int64_t> samples_;
};

TEST(TrainerMisuse, TasksThatReturnNothing) {
  const auto refused = [](const std::vector<std::int64_t>& samples) {
    return refused_in_a_step([&](const Context& /*context*/, testing::DroppingNet& /*net*/) {
      return std::make_unique<StrangeTask>(samples);
    });
  };
  EXPECT_TRUE(refused({}).starts_with("Task::samples_per_epoch() returned an empty list"));
  EXPECT_TRUE(refused({9, 0}).starts_with("Task::samples_per_epoch() returned 0 for data set 1"));
  EXPECT_EQ(refused({9}), "Task::prepare() returned a null pointer; it returns a batch");
  EXPECT_TRUE(refused_in_a_step([](const Context& /*context*/, testing::DroppingNet& /*net*/) {
                return nullptr;
              }).starts_with("a Trainer without a task"));
}

class MeasuringTask final : public testing::MadeTask {
 public:
  explicit MeasuringTask(std::vector<double> values) : values_(std::move(values)) {}
  [[nodiscard]] std::vector<std::string> metric_names() const override { return {"a", "b"}; }
  [[nodiscard]] std::vector<double> metrics() const override { return values_; }

 private:
  std::vector<double> values_;
};

TEST(TrainerMisuse, NumbersOfATaskThatHaveNoNames) {
  EXPECT_EQ(refused_in_a_step([](const Context& /*context*/, testing::DroppingNet& /*net*/) {
              return std::make_unique<MeasuringTask>(std::vector<double>{1});
            }),
            "Task::metrics() returned 1 numbers for the 2 names of metric_names()");
  // With them they are the means over ranks and micro-batches.
  testing::SmallRun run{.ranks = 2};
  run.options.gradient_accumulation_steps = 2;
  run.make = [](const Context& context, testing::DroppingNet& /*net*/) {
    return std::make_unique<MeasuringTask>(std::vector<double>{1, 2.0 * context.rank()});
  };
  run_small(run, [](Trainer& trainer) {
    using Numbers = std::vector<std::pair<std::string, double>>;
    EXPECT_EQ(trainer.step().value().of_task, (Numbers{{"a", 1}, {"b", 1}}));
  });
}

TEST(TrainerMisuse, WhatATaskOrARunDoesNotHave) {
  run_small({}, [](Trainer& trainer) {
    EXPECT_TRUE(misuse_of([&] {
                  return trainer.evaluate();
                }).starts_with("evaluate() of a task without an evaluation"));
    EXPECT_EQ(misuse_of([&] { return trainer.recorder().complete(); }),
              "recorder() of a run that records nothing: call record()");
    trainer.record();
    (void)trainer.step();
    (void)trainer.recorder();
  });
  EXPECT_TRUE(misuse_of([] {
                return tasks::Evaluation{}.best_by();
              }).starts_with("an evaluation without numbers"));
}

TEST(TrainerMisuse, CallsOfAnotherThread) {
  run_small({}, [](Trainer& trainer) {
    (void)trainer.step();
    std::string text;
    std::thread([&] { text = misuse_of([&] { return trainer.step(); }); }).join();
    EXPECT_TRUE(text.starts_with("step() on another thread: the Trainer was made on another"));
    EXPECT_EQ(trainer.step().value().step, 2);  // this thread may go on
  });
}

TEST(TrainerMisuse, AModuleThatEndsBeforeTheTrainer) {
  launch(1, [](Context& context) {
    auto net = std::make_unique<testing::DroppingNet>();
    Trainer trainer(
        tasks::make_tensor_task(*net, testing::rows_of_numbers(), testing::cross_entropy_of(*net)),
        context, {});
    (void)trainer.step();
    net.reset();
    const std::string gone =
        ": the module was destroyed before the trainer; keep it until the trainer's end";
    EXPECT_EQ(misuse_of([&] { return trainer.step(); }), "step()" + gone);
    EXPECT_EQ(misuse_of([&] { return trainer.save(); }), "save()" + gone);
  });
}

}  // namespace
}  // namespace tessera

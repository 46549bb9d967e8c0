// Ranks whose options, data or seeds differ are refused before they train.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "tests/trainer/small_run.h"

namespace tessera {
namespace {

std::string difference_of(const testing::SmallRun& run) {
  return testing::error_of([&] { testing::run_small(run, [](Trainer& /*trainer*/) {}); },
                           ErrorCode::configuration);
}

std::string text_of_difference(const std::string& first, const std::string& other) {
  return "TrainerOptions: ranks 0 and 2 have different options: rank 0 has \"" + first +
         "\" where rank 2 has \"" + other + "\"; give all ranks the same";
}

TEST(RankDifferences, OfOptions) {
  using Options = TrainerOptions;
  struct Case {
    std::function<void(Options&)> change;
    std::string first, other;
  };
  const std::vector<Case> cases = {
      {[](Options& o) { o.batch_size = 3; }, "batch_size: 2", "batch_size: 3"},
      {[](Options& o) { o.gradient_accumulation_steps = 2; }, "gradient_accumulation_steps: 1",
       "gradient_accumulation_steps: 2"},
      {[](Options& o) { o.sync_each_batch = false; }, "sync_each_batch: true",
       "sync_each_batch: false"},
      {[](Options& o) { o.steps = 7; }, "steps: 1000", "steps: 7"},
      {[](Options& o) { o.max_grad_norm = 0.5; }, "max_grad_norm: 1", "max_grad_norm: 0.5"},
      {[](Options& o) { o.optimizer = optim::SgdOptions{}; }, "optimizer: AdamW", "optimizer: Sgd"},
      {[](Options& o) { o.optimizer = optim::AdamWOptions{.beta2 = 0.5}; },
       "optimizer.beta2: 0.999", "optimizer.beta2: 0.5"},
      {[](Options& o) { o.optimizer = optim::LionOptions{}; }, "optimizer: AdamW",
       "optimizer: Lion"},
      {[](Options& o) { o.optimizer = optim::MuonOptions{}; }, "optimizer: AdamW",
       "optimizer: Muon"},
      {[](Options& o) { o.optimizer = optim::AdafactorOptions{}; }, "optimizer: AdamW",
       "optimizer: Adafactor"},
      {[](Options& o) { o.optimizer = optim::OptimizerFactory{}; }, "optimizer: AdamW",
       "optimizer: made by a function"},
      {[](Options& o) { o.schedule = optim::Schedule{}; }, "schedule: not set",
       "schedule.kind: constant"},
      {[](Options& o) { o.pruning = PruningOptions{.weights = {{"net.weight"}}}; },
       "pruning: not set", "pruning.method: 0"},
      {[](Options& o) { o.data.drop_last = true; }, "data.drop_last: false",
       "data.drop_last: true"},
      {[](Options& o) { o.checkpoint.dir = "here"; }, "checkpoint.dir: ", "checkpoint.dir: here"},
      {[](Options& o) { o.checkpoint.async = true; }, "checkpoint.async: false",
       "checkpoint.async: true"},
      {[](Options& o) { o.checkpoint.save.keep = 2; }, "checkpoint.save.keep: 0",
       "checkpoint.save.keep: 2"},
      {[](Options& /*options*/) { manual_seed(4); }, "the thread's seed (manual_seed): 3",
       "the thread's seed (manual_seed): 4"},
  };
  for (const Case& one : cases) {
    const auto change = [&](const Context& context, Options& options) {
      if (context.rank() == 2) one.change(options);
    };
    EXPECT_EQ(difference_of({.ranks = 4, .change = change}),
              text_of_difference(one.first, one.other));
  }
}

TEST(RankDifferences, OfGroups) {
  const auto change = [](const Context& context, TrainerOptions& options) {
    const double scale = context.rank() == 2 ? 0.5 : 0.25;
    options.optimizer = optim::AdamWOptions{.groups = {{"in.*", scale}}};
  };
  EXPECT_EQ(difference_of({.ranks = 4, .change = change}),
            text_of_difference("optimizer.groups[0].lr_scale: 0.25",
                               "optimizer.groups[0].lr_scale: 0.5"));
}

TEST(RankDifferences, OfData) {
  const auto rows = [](const Context& context, testing::DroppingNet& net) {
    return tasks::make_tensor_task(net, testing::rows_of_numbers(context.rank() == 2 ? 21 : 22),
                                   testing::cross_entropy_of(net));
  };
  EXPECT_EQ(
      difference_of({.ranks = 4, .make = rows}),
      text_of_difference("samples per epoch of the task: 22", "samples per epoch of the task: 21"));
  const auto seeds = [](const Context& context, testing::DroppingNet& net) {
    return tasks::make_tensor_task(net, testing::rows_of_numbers(), testing::cross_entropy_of(net),
                                   {.seed = context.rank() == 2 ? 1U : 0U});
  };
  EXPECT_EQ(difference_of({.ranks = 4, .make = seeds}),
            text_of_difference(R"(data of the task: {"samples":22,"seed":0,"shuffle":true})",
                               R"(data of the task: {"samples":22,"seed":1,"shuffle":true})"));
}

}  // namespace
}  // namespace tessera

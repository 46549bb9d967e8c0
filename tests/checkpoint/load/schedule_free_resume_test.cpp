// Checkpoints of schedule-free AdamW have the averages as weights; evaluations, saves and resumes
// change no bit of a run; and what partial loads and other optimizers' checkpoints do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/classifier.h"
#include "engine/optim/schedule_free.h"

namespace tessera::checkpoint {
namespace {

using testing::Classifier;
using testing::Whole;

using AveragedBody =
    std::function<void(Context&, Classifier&, ShardedModel&, optim::ScheduleFreeAdamW&)>;

struct AveragedValues {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::int64_t> counts;
};

AveragedValues averaged_run(int world, const ShardingOptions& options, const AveragedBody& body) {
  Whole whole;
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    Classifier net;
    ShardedModel model = fully_shard(net, context, options);
    optim::ScheduleFreeAdamW optimizer(model.parameters(), {.lr = 0.05, .weight_decay = 0.1});
    body(context, net, model, optimizer);
    whole.add(model, &optimizer);
  });
  return {whole.values, whole.counts};
}

ShardingOptions of_strategy(Strategy strategy) {
  return {.strategy = strategy, .wrap = WrapPolicy::list({"trunk"})};
}

// A step with the batch of this number.
void train_step(const Classifier& net, optim::Optimizer& optimizer, int step) {
  optimizer.set_learning_rate(0.05 * std::min(step + 1, 3) / 3);
  std::vector<float> x;
  for (int i = 0; i < 24; ++i) x.push_back(0.1f * static_cast<float>((i * 7 + step) % 11 - 5));
  net.loss(Tensor::from(x, {4, 6})).backward();
  optimizer.step();
  optimizer.zero_grad();
}

double evaluated(const Classifier& net, optim::Optimizer& optimizer) {
  const NoGradGuard no_grad;
  optimizer.begin_evaluation();
  const double loss = net.loss(Tensor::full({2, 6}, 0.5)).item();
  optimizer.end_evaluation();
  return loss;
}

TEST(ScheduleFreeResume, EvaluationsSavesAndResumesChangeNoBit) {
  const AveragedValues straight =
      averaged_run(2, of_strategy(Strategy::full_shard),
                   [](Context&, Classifier& net, ShardedModel&, optim::Optimizer& optimizer) {
                     for (int step = 0; step < 6; ++step) train_step(net, optimizer, step);
                   });
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  for (const Strategy strategy :
       {Strategy::full_shard, Strategy::shard_grad_op, Strategy::no_shard}) {
    ShardingOptions options = of_strategy(strategy);
    const AveragedValues disturbed = averaged_run(
        2, options,
        [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
          for (int step = 0; step < 6; ++step) {
            (void)evaluated(net, optimizer);
            train_step(net, optimizer, step);
            (void)save(context, dir, model, optimizer);
            (void)evaluated(net, optimizer);
          }
        });
    EXPECT_EQ(disturbed.values, straight.values) << name_of(strategy);
    for (const int world : {1, 2, 4}) {
      const AveragedValues resumed = averaged_run(
          world, options,
          [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
            (void)load(context, dir + "/step-4", model, optimizer);
            for (int step = 4; step < 6; ++step) train_step(net, optimizer, step);
          });
      EXPECT_EQ(resumed.values, straight.values) << name_of(strategy) << " on " << world;
      EXPECT_EQ(resumed.counts, straight.counts);
    }
  }
}

TEST(ScheduleFreeResume, WeightsAreTheAverages) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  for (const bool during_evaluation : {false, true}) {
    double loss = 0;
    const AveragedValues saved = averaged_run(
        2, of_strategy(Strategy::full_shard),
        [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
          for (int step = 0; step < 3; ++step) train_step(net, optimizer, step);
          if (during_evaluation) optimizer.begin_evaluation();
          (void)save(context, dir, model, optimizer, {.type = StateDictType::full});
          if (during_evaluation) optimizer.end_evaluation();
          const double found = evaluated(net, optimizer);
          if (context.is_main()) loss = found;
        });
    // The weights alone, as a program that only evaluates loads them.
    launch(1, [&](Context& context) {
      const tessera::testing::OneThread one_thread;
      Classifier net;
      ShardedModel model = fully_shard(net, context, of_strategy(Strategy::no_shard));
      (void)load(context, dir + "/step-3", model);
      for (const ShardedParameter& parameter : model.sharded_parameters()) {
        EXPECT_EQ(parameter.local.to_vector(), saved.values.at(parameter.name + ".average"));
        EXPECT_NE(parameter.local.to_vector(), saved.values.at(parameter.name));
      }
      const NoGradGuard no_grad;
      EXPECT_EQ(net.loss(Tensor::full({2, 6}, 0.5)).item(), loss);
    });
    const std::string state = testing::read_all(folder.path() / "step-3" / "optimizer.safetensors");
    EXPECT_NE(state.find("head.weight.z"), std::string::npos);
    EXPECT_EQ(state.find("head.weight.average"), std::string::npos);
  }
}

// Weights without the state beside them: z and the average begin anew there.
TEST(ScheduleFreeResume, TakesWeightsAlone) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  const AveragedValues saved = averaged_run(
      2, of_strategy(Strategy::full_shard),
      [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
        for (int step = 0; step < 3; ++step) train_step(net, optimizer, step);
        (void)save(context, dir, model, optimizer);
      });
  const auto none = [](const std::string&) { return false; };
  const AveragedValues loaded = averaged_run(
      2, of_strategy(Strategy::full_shard),
      [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
        train_step(net, optimizer, 7);
        (void)load(context, dir + "/step-3", model, optimizer,
                   LoadOptions{.model = testing::is_trunk, .optimizer = none});
      });
  for (const auto& [name, count] : saved.counts) {
    EXPECT_EQ(loaded.counts.at(name), 1);
    if (!testing::is_trunk(name)) continue;
    const std::vector<double>& average = saved.values.at(name + ".average");
    EXPECT_EQ(loaded.values.at(name), average);
    EXPECT_EQ(loaded.values.at(name + ".z"), average);
    EXPECT_EQ(loaded.values.at(name + ".average"), average);
  }
  EXPECT_NE(loaded.values.at("head.weight"), saved.values.at("head.weight.average"));
}

// With the states and without the weights, which are the average, the parameters would be wrong.
TEST(ScheduleFreeResume, RefusesStatesWithoutWeights) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  (void)averaged_run(
      1, of_strategy(Strategy::full_shard),
      [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
        train_step(net, optimizer, 0);
        (void)save(context, dir, model, optimizer);
        const auto nothing = [](const std::string&) { return false; };
        const std::string text = testing::error_of([&] {
          (void)load(context, dir + "/step-1", model, optimizer, LoadOptions{.model = nothing});
        });
        EXPECT_TRUE(testing::has(text, "load both or neither")) << text;
      });
}

TEST(ScheduleFreeResume, RefusesOtherOptimizersSteps) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  const auto adamw = testing::pretrained();
  (void)averaged_run(
      1, of_strategy(Strategy::full_shard),
      [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
        train_step(net, optimizer, 0);
        (void)save(context, dir, model, optimizer);
        const std::string text =
            testing::error_of([&] { (void)load(context, adamw->step(), model, optimizer); });
        EXPECT_TRUE(testing::has(text, "missing optimizer tensor")) << text;
      });
  testing::with_new(
      1, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
        const std::string text =
            testing::error_of([&] { (void)load(context, dir + "/step-1", model, optimizer); });
        EXPECT_TRUE(testing::has(text, "unexpected optimizer tensor")) << text;
      });
}

// Files cannot hold what the average and the parameter exchange.
TEST(ScheduleFreeResume, RefusesOffloadedState) {
  const testing::TemporaryFolder folder;
  launch(1, [&](Context& context) {
    Classifier net;
    ShardingOptions options = of_strategy(Strategy::full_shard);
    options.offload.optimizer = Placement::file;
    options.offload.folder = folder.path().string();
    ShardedModel model = fully_shard(net, context, options);
    EXPECT_THROW(optim::ScheduleFreeAdamW(model.parameters(), {}), Error);
  });
}

}  // namespace
}  // namespace tessera::checkpoint

// A model that is frozen in part goes through a checkpoint with every value it had, whatever it is
// computed in and on whatever number of ranks it comes back; moments too, of what was trained
// before it was frozen.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/low_precision.h"
#include "checkpoint/classifier.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "sharding/units/mixed_module.h"

namespace tessera::checkpoint {
namespace {

using Values = std::map<std::string, std::vector<double>>;

ShardingOptions in_bf16(Strategy strategy) {
  ShardingOptions options = tessera::testing::toy_options(strategy);
  options.wrap = WrapPolicy::list({"mixed", "fixed"});
  options.param_dtype = bfloat16;
  return options;
}

// Trains a step and saves when `from` is empty; else loads. Returns the values of all ranks
// together.
Values train_or_load(int world, Strategy strategy, const std::filesystem::path& folder,
                     StateDictType type, const std::filesystem::path& from) {
  tessera::testing::Collected collected;
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(from.empty() ? 17 : 99);
    tessera::testing::MixedAndFrozen net;
    ShardedModel model = fully_shard(net, context, in_bf16(strategy));
    optim::AdamW optimizer(model.parameters(), {});
    if (from.empty()) {
      const auto batch = tessera::testing::toy_batch(context.rank(), 2);
      net.loss(batch.ids, batch.targets).backward();
      optimizer.step();
      tessera::save(context, folder, model, optimizer, {.step = 1, .type = type});
    } else {
      (void)tessera::load(context, from, model, optimizer);
    }
    collected.add(model);
  });
  return collected.values();
}

TEST(FrozenState, IsRestoredExactly) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const testing::TemporaryFolder folder;
    const Values saved = train_or_load(3, Strategy::full_shard, folder.path(), type, {});
    // Outside the range of the compute dtype.
    const std::vector<double>& wide = saved.at("fixed.frozen_wide.weight");
    EXPECT_TRUE(std::any_of(wide.begin(), wide.end(), [](double value) {
      const auto rounded = to_float(to_bfloat16(static_cast<float>(value)));
      return static_cast<double>(rounded) != value;
    }));
    for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
      for (const int world : {1, 2, 4}) {
        EXPECT_EQ(train_or_load(world, strategy, folder.path(), type, folder.path() / "step-1"),
                  saved)
            << world;
      }
    }
  }
}

void freeze_trunk(testing::Classifier& net, bool frozen) {
  for (auto& parameter : net.trunk->named_parameters()) parameter.tensor.set_requires_grad(!frozen);
}

// Two steps of the whole model, then one with the trunk frozen or not, and a save as step 3.
void train_and_save(const std::string& folder, StateDictType type, bool frozen,
                    testing::Whole& saved) {
  testing::with_new(
      2, 3,
      [&](Context& context, testing::Classifier& net, ShardedModel& model, auto& optimizer) {
        testing::train(net, optimizer, 2);
        freeze_trunk(net, frozen);
        testing::train(net, optimizer, 1);
        save(context, folder, model, optimizer, {.step = 3, .type = type});
      },
      &saved);
}

// As in torch, where a parameter's state outlives requires_grad = false.
TEST(FrozenState, MomentsOfWhatIsFrozenForAWhileComeBack) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    for (const bool frozen_at_save : {false, true}) {
      const testing::TemporaryFolder folder;
      testing::Whole saved;
      train_and_save(folder.path(), type, frozen_at_save, saved);
      EXPECT_EQ(saved.counts.at("trunk.in.weight"), frozen_at_save ? 2 : 3);
      EXPECT_EQ(saved.counts.at("head.weight"), 3);
      for (const bool frozen_at_load : {false, true}) {
        for (const bool newest : {false, true}) {
          testing::Whole loaded;
          testing::with_new(
              3, 3,
              [&](Context& context, testing::Classifier& net, ShardedModel& model,
                  auto& optimizer) {
                freeze_trunk(net, frozen_at_load);
                if (newest) {
                  EXPECT_TRUE(load_latest(context, folder.path(), model, optimizer).has_value());
                } else {
                  (void)load(context, folder.path() / "step-3", model, optimizer);
                }
              },
              &loaded);
          EXPECT_EQ(loaded.values, saved.values) << frozen_at_save << frozen_at_load;
          EXPECT_EQ(loaded.counts, saved.counts) << frozen_at_save << frozen_at_load;
        }
      }
    }
  }
}

// It goes on as if there had been no save between.
TEST(FrozenState, TrainingGoesOnWhenTheFreezeEnds) {
  const testing::TemporaryFolder folder;
  const auto thaw_and_train = [](testing::Classifier& net, optim::Optimizer& optimizer) {
    freeze_trunk(net, false);
    testing::train(net, optimizer, 2);
  };
  testing::Whole straight, resumed;
  testing::with_new(
      2, 3,
      [&](Context& context, testing::Classifier& net, ShardedModel& model, auto& optimizer) {
        testing::train(net, optimizer, 2);
        freeze_trunk(net, true);
        testing::train(net, optimizer, 1);
        save(context, folder.path(), model, optimizer);
        thaw_and_train(net, optimizer);
      },
      &straight);
  testing::with_new(
      2, 3,
      [&](Context& context, testing::Classifier& net, ShardedModel& model, auto& optimizer) {
        freeze_trunk(net, true);
        (void)load_latest(context, folder.path(), model, optimizer);
        thaw_and_train(net, optimizer);
      },
      &resumed);
  EXPECT_EQ(resumed.values, straight.values);
  EXPECT_EQ(resumed.counts, straight.counts);
}

// What was frozen from the first step on has no moments to save, and a load does not ask for them
// while it is frozen: such a step is as small as ever.
TEST(FrozenState, WhatWasNeverTrainedHasNoMoments) {
  const testing::TemporaryFolder folder;
  testing::with_new(
      2, 3, [&](Context& context, testing::Classifier& net, ShardedModel& model, auto& optimizer) {
        freeze_trunk(net, true);
        testing::train(net, optimizer, 1);
        save(context, folder.path(), model, optimizer, {.step = 3});
      });
  testing::with_new(
      2, 3, [&](Context& context, testing::Classifier& net, ShardedModel& model, auto& optimizer) {
        EXPECT_TRUE(testing::has(testing::error_of([&] {
                                   (void)load(context, folder.path() / "step-3", model, optimizer);
                                 }),
                                 "missing optimizer tensor 'trunk.in.weight.exp_avg'"));
        freeze_trunk(net, true);
        const LoadResult result =
            load(context, folder.path() / "step-3", model, optimizer, LoadOptions{});
        EXPECT_EQ(result.optimizer.missing.size(), 8u);
        for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
          EXPECT_EQ(optimizer.step_counts()[i],
                    optimizer.parameters()[i].name.starts_with("head.") ? 1 : 0);
        }
      });
}

}  // namespace
}  // namespace tessera::checkpoint

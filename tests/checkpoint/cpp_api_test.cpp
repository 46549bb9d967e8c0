// ts::save, ts::load, ts::latest and ts::load_latest, as a user's program calls them.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/save/async_save.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "sharding/units/mixed_module.h"

namespace tessera::checkpoint {
namespace {

using ParameterValues = std::map<std::string, std::vector<double>>;

// A module on three ranks with an optimizer, and the ranks' values after `body`.
using ApiBody = std::function<void(Context&, ShardedModel&, optim::Optimizer&)>;
ParameterValues values_after(const ApiBody& body, std::uint64_t seed) {
  tessera::testing::Collected collected;
  launch(3, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(seed);
    tessera::testing::MixedAndFrozen net;
    ShardingOptions options = tessera::testing::toy_options(Strategy::full_shard);
    options.wrap = WrapPolicy::list({"mixed", "fixed"});
    ShardedModel model = fully_shard(net, context, options);
    optim::AdamW optimizer(model.parameters(), {});
    body(context, model, optimizer);
    collected.add(model);
  });
  return collected.values();
}

// Without a step in the options, the step is the optimizer's.
TEST(CppApi, AStepHasTheNumberOfTheOptimizersSteps) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  (void)values_after(
      [&](Context& context, ShardedModel& model, optim::Optimizer& optimizer) {
        EXPECT_TRUE(save(context, dir, model, optimizer).path.ends_with("/step-0"));
        optimizer.set_step_counts(std::vector<std::int64_t>(optimizer.parameters().size(), 7));
        EXPECT_TRUE(save(context, dir, model, optimizer).path.ends_with("/step-7"));
        AsyncSaver saver(context, model, optimizer);
        optimizer.set_step_counts(std::vector<std::int64_t>(optimizer.parameters().size(), 9));
        (void)saver.save(dir);
        EXPECT_TRUE(saver.wait()->saved.path.ends_with("/step-9"));
        EXPECT_TRUE(
            save(context, dir, model, optimizer, {.step = 0, .line = {}}).path.ends_with("step-0"));
      },
      5);
}

TEST(CppApi, WeightsAloneAndTheNewestStep) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  const ParameterValues saved = values_after(
      [&](Context& context, ShardedModel& model, optim::Optimizer& optimizer) {
        EXPECT_FALSE(latest(context, dir).has_value());
        EXPECT_FALSE(load_latest(context, dir, model, optimizer).has_value());
        const Saved first = save(context, dir, model, optimizer, {.step = 1});
        const Saved second =
            save(context, dir, model, optimizer,
                 {.step = 2, .keep = 1, .scalars = Scalars().set("seen", 7), .line = first.line});
        EXPECT_EQ(second.line.run, first.line.run);
        EXPECT_TRUE(second.warnings.empty());
      },
      17);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "step-1"));
  // A load of only the weights does not read the optimizer's file.
  const ParameterValues weights = values_after(
      [&](Context& context, ShardedModel& model, optim::Optimizer& optimizer) {
        const auto found = latest(context, dir);
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->step, 2);
        context.barrier();
        if (context.is_main()) std::filesystem::remove(found->path + "/optimizer.safetensors");
        context.barrier();
        EXPECT_EQ(load(context, found->path, model).get<std::int64_t>("seen"), 7);
        EXPECT_THROW((void)load(context, found->path, model, optimizer), Error);
      },
      99);
  EXPECT_EQ(weights, saved);
}

TEST(CppApi, LoadLatestFallsBackWhenAStepIsDamagedDuringTheLoad) {
  const testing::TemporaryFolder folder;
  const std::string dir = folder.path().string();
  const ParameterValues saved = values_after(
      [&](Context& context, ShardedModel& model, optim::Optimizer& optimizer) {
        for (const int step : {1, 2}) {
          save(context, dir, model, optimizer,
               {.step = step, .scalars = Scalars().set("of", step)});
        }
      },
      17);
  const std::filesystem::path spoiled = folder.path() / "step-2/optimizer.safetensors";
  std::string bytes = testing::read_all(spoiled);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  testing::write_all(spoiled, bytes);
  const ParameterValues loaded = values_after(
      [&](Context& context, ShardedModel& model, optim::Optimizer& optimizer) {
        const auto found = load_latest(context, dir, model, optimizer);
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->found.step, 1);
        EXPECT_EQ(found->found.skipped.size(), 1u);
        EXPECT_EQ(found->scalars.get<std::int64_t>("of"), 1);
      },
      99);
  EXPECT_EQ(loaded, saved);
}

}  // namespace
}  // namespace tessera::checkpoint

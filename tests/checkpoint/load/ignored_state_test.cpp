// Ignored modules are saved and loaded like all others: written once, read by all ranks, whatever
// the other side ignored; but they are not saved from ranks that have diverged.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/save/async_save.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"
#include "sharding/sharding_testing.h"

namespace tessera::checkpoint {
namespace {

using IgnoredValues = std::map<std::string, std::vector<double>>;

ShardingOptions leaving_out(const std::vector<std::string>& modules) {
  ShardingOptions options = tessera::testing::toy_options(Strategy::full_shard);
  options.ignored_modules = modules;
  return options;
}

std::vector<nn::NamedParameter> with_ignored(const ShardedModel& model) {
  auto parameters = model.parameters();
  for (const auto& parameter : model.ignored_parameters()) parameters.push_back(parameter);
  return parameters;
}

// Takes a step with the same gradients on all ranks and saves; or only loads.
IgnoredValues step_or_load(int world, const std::vector<std::string>& modules,
                           const std::filesystem::path& folder, StateDictType type,
                           const std::filesystem::path& from) {
  tessera::testing::Collected collected;
  std::map<std::string, std::vector<double>> moments;
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(from.empty() ? 17 : 99);
    tessera::testing::ToyTransformer net;
    ShardedModel model = fully_shard(net, context, leaving_out(modules));
    optim::AdamW optimizer(with_ignored(model), {});
    if (from.empty()) {
      const auto batch = tessera::testing::toy_batch(0, 2);
      net.loss(batch.ids, batch.targets).backward();
      optimizer.step();
      tessera::save(context, folder, model, optimizer, {.step = 1, .type = type});
    } else {
      (void)tessera::load(context, from, model, optimizer);
      model.compare_ignored_parameters();
    }
    collected.add(model);
    if (!context.is_main()) return;
    const auto parameters = optimizer.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].name.starts_with("norm.")) continue;
      for (const std::string& name : optimizer.state_names()) {
        moments["moment " + parameters[i].name + name] = optimizer.state(i, name).to_vector();
      }
    }
  });
  IgnoredValues values = collected.values();
  if (!modules.empty()) values.insert(moments.begin(), moments.end());
  return values;
}

TEST(IgnoredState, IsRestoredWhateverIsIgnored) {
  const std::vector<std::string> some = {"norm", "blocks.1"};
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const testing::TemporaryFolder folder;
    const IgnoredValues saved = step_or_load(3, some, folder.path(), type, {});
    EXPECT_TRUE(saved.contains("norm.weight") && saved.contains("blocks.1.in.weight"));
    for (const int world : {1, 2, 4}) {
      const auto step = folder.path() / "step-1";
      EXPECT_EQ(step_or_load(world, some, folder.path(), type, step), saved) << world;
      const IgnoredValues other = step_or_load(world, {}, folder.path(), type, step);
      for (const auto& [name, values] : other) EXPECT_EQ(values, saved.at(name)) << name;
    }
  }
}

// Neither a synchronous nor an asynchronous save begins.
TEST(IgnoredState, IsNotSavedFromRanksThatDiffer) {
  const testing::TemporaryFolder folder;
  launch(2, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(17);
    tessera::testing::ToyTransformer net;
    ShardedModel model = fully_shard(net, context, leaving_out({"norm"}));
    optim::Sgd optimizer(with_ignored(model), {.lr = 0.1});
    tessera::testing::train_once(context, net);
    optimizer.step();
    const std::string message = "ranks 0 and 1 have different values of norm.weight";
    EXPECT_TRUE(testing::has(
        testing::error_of(
            [&] { tessera::save(context, folder.path(), model, optimizer, {.step = 1}); },
            ErrorCode::configuration),
        message));
    AsyncSaver saver(context, model, optimizer);
    EXPECT_TRUE(
        testing::has(testing::error_of([&] { (void)saver.save(folder.path(), {.step = 1}); },
                                       ErrorCode::configuration),
                     message));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "step-1"));
    // If the optimizer leaves them out, nothing has changed them.
    manual_seed(17);
    tessera::testing::ToyTransformer fresh;
    ShardedModel rest = fully_shard(fresh, context, leaving_out({"norm"}));
    optim::Sgd without(rest.parameters(), {.lr = 0.1});
    tessera::testing::train_once(context, fresh);
    without.step();
    tessera::save(context, folder.path(), rest, without, {.step = 2});
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "step-2"));
  });
}

}  // namespace
}  // namespace tessera::checkpoint

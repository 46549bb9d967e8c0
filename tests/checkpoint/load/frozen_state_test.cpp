// A partly frozen model keeps every value through a checkpoint, in any compute dtype and on any
// number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/low_precision.h"
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

}  // namespace
}  // namespace tessera::checkpoint

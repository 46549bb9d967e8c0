// A run of Adafactor goes on on another world and under another strategy with the bits that it
// would have had.
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/classifier.h"
#include "engine/optim/adafactor.h"

namespace tessera::checkpoint {
namespace {

using testing::Classifier;
using testing::Whole;

// All ranks have the same data, so the mean of 1, 2 or 4 gradients has the same bits.
void adafactor_on_world(
    int world, ShardingOptions options, Whole& whole,
    const std::function<void(Context&, Classifier&, ShardedModel&, optim::Adafactor&)>& body) {
  options.wrap = WrapPolicy::list({"trunk"});
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    Classifier net;
    ShardedModel model = fully_shard(net, context, options);
    optim::Adafactor optimizer(model.parameters(), {.lr = 0.05, .decay = optim::decay_matrices});
    body(context, net, model, optimizer);
    whole.add(model, &optimizer);
  });
}

TEST(AdafactorResume, GoesOnAnywhereWithTheSameBits) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const testing::TemporaryFolder folder;
    const std::string dir = folder.path().string();
    Whole straight, saved;
    adafactor_on_world(2, {}, straight,
                       [](Context&, Classifier& net, ShardedModel&, optim::Adafactor& optimizer) {
                         testing::train(net, optimizer, 3);
                         testing::train(net, optimizer, 2);
                       });
    adafactor_on_world(
        2, {}, saved,
        [&](Context& context, Classifier& net, ShardedModel& model, optim::Adafactor& optimizer) {
          testing::train(net, optimizer, 3);
          (void)save(context, dir, model, optimizer, {.type = type});
        });
    EXPECT_TRUE(saved.values.contains("trunk.in.weight.row_var"));
    EXPECT_TRUE(saved.values.contains("trunk.in.weight.col_var"));
    EXPECT_FALSE(saved.values.contains("trunk.in.weight.variance"));
    EXPECT_TRUE(saved.values.contains("trunk.in.bias.variance"));
    for (const int world : {1, 2, 4}) {
      for (const ShardingOptions& options : tessera::testing::all_strategies(world)) {
        Whole resumed;
        adafactor_on_world(world, options, resumed,
                           [&](Context& context, Classifier& net, ShardedModel& model,
                               optim::Adafactor& optimizer) {
                             (void)load(context, dir + "/step-3", model, optimizer);
                             testing::train(net, optimizer, 2);
                           });
        EXPECT_EQ(resumed.values, straight.values)
            << tessera::testing::describe(options) << " on " << world;
        EXPECT_EQ(resumed.counts, straight.counts);
      }
    }
  }
}

// Another optimizer's state is refused by name, and nothing is loaded.
TEST(AdafactorResume, RefusesTheStateOfAdamW) {
  const auto made = testing::pretrained();
  launch(2, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    Classifier net;
    ShardedModel model = fully_shard(net, context, {.wrap = WrapPolicy::list({"trunk"})});
    optim::Adafactor optimizer(model.parameters(), {.lr = 0.05});
    const std::string text = tessera::testing::message_of<Error>(
        [&] { (void)load(context, made->step(), model, optimizer); });
    EXPECT_NE(text.find("row_var"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace tessera::checkpoint

// A run of Muon goes on on another world and under another strategy with the bits that it would
// have had.
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/classifier.h"
#include "engine/optim/muon.h"

namespace tessera::checkpoint {
namespace {

using testing::Classifier;
using testing::Whole;

// All ranks have the same data, so the mean of 1, 2 or 4 gradients has the same bits.
void on_world(int world, ShardingOptions options, Whole& whole,
              const std::function<void(Context&, Classifier&, ShardedModel&, optim::Muon&)>& body) {
  options.wrap = WrapPolicy::list({"trunk"});
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    Classifier net;
    ShardedModel model = fully_shard(net, context, options);
    optim::Muon optimizer(model.parameters(), {.lr = 0.05, .decay = optim::decay_matrices});
    body(context, net, model, optimizer);
    whole.add(model, &optimizer);
  });
}

TEST(MuonResume, GoesOnAnywhereWithTheSameBits) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const testing::TemporaryFolder folder;
    const std::string dir = folder.path().string();
    Whole straight, saved;
    on_world(2, {}, straight, [](Context&, Classifier& net, ShardedModel&, optim::Muon& optimizer) {
      testing::train(net, optimizer, 3);
      testing::train(net, optimizer, 2);
    });
    on_world(2, {}, saved,
             [&](Context& context, Classifier& net, ShardedModel& model, optim::Muon& optimizer) {
               testing::train(net, optimizer, 3);
               (void)save(context, dir, model, optimizer, {.type = type});
             });
    EXPECT_TRUE(saved.values.contains("trunk.in.weight.momentum"));
    EXPECT_FALSE(saved.values.contains("trunk.in.weight.exp_avg"));
    EXPECT_TRUE(saved.values.contains("trunk.in.bias.exp_avg_sq"));
    for (const int world : {1, 2, 4}) {
      for (const ShardingOptions& options : tessera::testing::all_strategies(world)) {
        Whole resumed;
        on_world(
            world, options, resumed,
            [&](Context& context, Classifier& net, ShardedModel& model, optim::Muon& optimizer) {
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
TEST(MuonResume, RefusesTheStateOfAdamW) {
  const auto made = testing::pretrained();
  launch(2, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    Classifier net;
    ShardedModel model = fully_shard(net, context, {.wrap = WrapPolicy::list({"trunk"})});
    optim::Muon optimizer(model.parameters(), {.lr = 0.05});
    const std::string text = tessera::testing::message_of<Error>(
        [&] { (void)load(context, made->step(), model, optimizer); });
    EXPECT_NE(text.find("momentum"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace tessera::checkpoint

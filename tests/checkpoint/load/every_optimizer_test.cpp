// Every optimizer's state in checkpoints: other worlds, both kinds of files, and a run that goes on
// with the same bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/classifier.h"
#include "sharding/strategies/optimizer_list.h"

namespace tessera::checkpoint {
namespace {

using tessera::testing::all_optimizers;
using tessera::testing::OptimizerOfList;
using testing::Classifier;
using testing::Whole;

using Body = std::function<void(Context&, Classifier&, ShardedModel&, optim::Optimizer&)>;

struct StateValues {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, std::int64_t> counts;
  std::size_t tensors = 0;  // parameters and states
};

// The values of model and optimizer after `body` on a new model.
StateValues values_after(int world, const OptimizerOfList& optimizer, const Body& body) {
  Whole whole;
  std::size_t tensors = 0;
  launch(world, [&](Context& context) {
    const tessera::testing::OneThread one_thread;
    manual_seed(3);
    Classifier net;
    ShardedModel model =
        fully_shard(net, context, optimizer.fit({.wrap = WrapPolicy::list({"trunk"})}));
    const auto made = optimizer.make(model.parameters());
    body(context, net, model, *made);
    whole.add(model, made.get());
    if (!context.is_main()) return;
    for (std::size_t i = 0; i < made->parameters().size(); ++i)
      tensors += 1 + made->state_names_of(i).size();
  });
  return {whole.values, whole.counts, tensors};
}

class OptimizerState : public ::testing::TestWithParam<OptimizerOfList> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerState, ::testing::ValuesIn(all_optimizers()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(OptimizerState, GoesOnOnOtherWorldsAndWithTheSameBits) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const testing::TemporaryFolder folder;
    const std::string dir = folder.path().string();
    const StateValues straight = values_after(
        2, GetParam(), [](Context&, Classifier& net, ShardedModel&, optim::Optimizer& optimizer) {
          testing::train(net, optimizer, 3);
          testing::train(net, optimizer, 2);
        });
    const StateValues saved = values_after(
        2, GetParam(),
        [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
          testing::train(net, optimizer, 3);
          (void)save(context, dir, model, optimizer, {.type = type});
        });
    for (const int world : {1, 2, 3}) {
      const StateValues loaded = values_after(
          world, GetParam(),
          [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
            (void)load(context, dir + "/step-3", model, optimizer);
          });
      EXPECT_EQ(loaded.values, saved.values) << world;
      EXPECT_EQ(loaded.counts, saved.counts) << world;
    }
    const StateValues resumed = values_after(
        2, GetParam(),
        [&](Context& context, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
          (void)load(context, dir + "/step-3", model, optimizer);
          testing::train(net, optimizer, 2);
        });
    EXPECT_EQ(resumed.values, straight.values);
    // A tensor for each parameter and its states.
    EXPECT_EQ(saved.values.size(), saved.tensors);
  }
}

}  // namespace
}  // namespace tessera::checkpoint

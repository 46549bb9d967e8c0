// An optimizer of some of the model's parameters is saved and loaded like one of all parameters; an
// optimizer of another model is refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/classifier.h"
#include "checkpoint/sharded_state.h"
#include "checkpoint/support.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using tessera::testing::OneThread;

std::vector<nn::NamedParameter> heads_of(const ShardedModel& model) {
  std::vector<nn::NamedParameter> some;
  for (const auto& parameter : model.parameters()) {
    if (parameter.name.starts_with("head.")) some.push_back(parameter);
  }
  return some;
}

TEST(OptimizerOfAPart, IsSavedAndLoaded) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    TemporaryFolder folder;
    Whole saved;
    launch(3, [&](Context& context) {
      const OneThread one_thread;
      manual_seed(3);
      Classifier net;
      ShardedModel model = fully_shard(net, context);
      optim::AdamW optimizer(heads_of(model), {.lr = 0.05});
      train(net, optimizer, 2);
      save(context, folder.path(), model, optimizer, {.step = 1, .type = type});
      saved.add(model, &optimizer);
    });
    EXPECT_TRUE(saved.values.contains("head.weight.exp_avg"));
    EXPECT_FALSE(saved.values.contains("trunk.in.weight.exp_avg"));
    Whole loaded;
    launch(2, [&](Context& context) {
      const OneThread one_thread;
      manual_seed(99);
      Classifier net;
      ShardedModel model = fully_shard(net, context);
      optim::AdamW all(model.parameters(), {});
      EXPECT_TRUE(has(error_of([&] { (void)load(context, folder.path() / "step-1", model, all); }),
                      "missing optimizer tensor 'trunk.in.weight.exp_avg'"));
      optim::AdamW optimizer(heads_of(model), {.lr = 0.05});
      (void)load(context, folder.path() / "step-1", model, optimizer);
      loaded.add(model, &optimizer);
    });
    EXPECT_EQ(loaded.values, saved.values);
    EXPECT_EQ(loaded.counts, saved.counts);
  }
}

TEST(OptimizerOfAPart, OfAnotherModelIsRefused) {
  TemporaryFolder folder;
  launch(2, [&](Context& context) {
    Classifier one, two;
    ShardedModel first = fully_shard(one, context);
    ShardedModel second = fully_shard(two, context);
    std::vector<nn::NamedParameter> both = first.parameters();
    for (auto& parameter : second.parameters()) both.push_back(parameter);
    optim::AdamW of_both(both, {});
    optim::AdamW of_second(second.parameters(), {});
    for (optim::Optimizer* optimizer :
         {static_cast<optim::Optimizer*>(&of_both), static_cast<optim::Optimizer*>(&of_second)}) {
      const std::string text = tessera::testing::message_of<std::logic_error>(
          [&] { save(context, folder.path(), first, *optimizer); });
      EXPECT_TRUE(has(text, "not a parameter of this ShardedModel"));
      EXPECT_TRUE(has(text, "give each its own"));
      EXPECT_THROW((void)load(context, folder.path() / "step-0", first, *optimizer),
                   std::logic_error);
    }
  });
}

}  // namespace
}  // namespace tessera::checkpoint

// Partial loads: a new head, an encoder from a whole model, moments after freezing, steps with
// additional tensors.
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

TEST(PartialLoad, ANewHeadOnAPretrainedTrunk) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded}) {
    const auto from = pretrained({.type = type});
    for (const int world : {1, 3}) {
      Whole fresh, loaded;
      with_new(
          world, 5, [](auto&&...) {}, &fresh);
      with_new(
          world, 5,
          [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
            const std::string text =
                error_of([&] { (void)load(context, from->step(), model, optimizer); });
            EXPECT_TRUE(has(text, "model tensor 'head.weight' has shape [3, 7], wanted [5, 7]"));
            EXPECT_TRUE(has(text, "optimizer tensor 'head.bias.exp_avg' has shape [3]"));
            EXPECT_TRUE(has(text, "LoadOptions"));
            const LoadResult result = load(context, from->step(), model, optimizer,
                                           LoadOptions{.model = is_trunk, .optimizer = is_trunk});
            EXPECT_TRUE(result.model.missing.empty() && result.model.unexpected.empty());
          },
          &loaded);
      expect_equal_where(loaded, from->whole, is_trunk);
      expect_equal_where(loaded, fresh,
                         [](const std::string& name) { return name.starts_with("head."); });
      EXPECT_EQ(loaded.counts.at("trunk.in.weight"), 2);
      EXPECT_EQ(loaded.counts.at("head.weight"), 0);
    }
  }
}

TEST(PartialLoad, ShapesAreCheckedWithoutStrict) {
  const auto from = pretrained();
  with_new(2, 5, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    const std::string text =
        error_of([&] { (void)load(context, from->step(), model, LoadOptions{.strict = false}); });
    EXPECT_TRUE(has(text, "'head.weight' has shape [3, 7], wanted [5, 7]"));
  });
}

TEST(PartialLoad, AnEncoderOutOfAWholeModel) {
  const auto from = pretrained();
  Whole loaded;
  launch(3, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(1);
    TrunkImpl net;
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {});
    std::string prefix = "trunk.";
    const StateNames names = [prefix](const std::string& name, bool) { return prefix + name; };
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, names); }),
                    "unexpected model tensor 'head.bias'"));
    const LoadResult result =
        load(context, from->step(), model, optimizer, LoadOptions{.strict = false, .names = names});
    const std::vector<std::string> head{"head.bias", "head.weight"};
    EXPECT_EQ(result.model.unexpected, head);
    EXPECT_EQ(result.model.missing, std::vector<std::string>());
    EXPECT_EQ(result.optimizer.unexpected.size(), 4u);
    EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>(4, 2)));
    // The same with a filter, so that no other tensors are reported.
    const LoadResult filtered =
        load(context, from->step(), model, LoadOptions{.names = names, .model = is_trunk});
    EXPECT_TRUE(filtered.model.unexpected.empty());
    loaded.add(model, &optimizer);
  });
  for (const auto& [name, values] : loaded.values) {
    EXPECT_EQ(values, from->whole.values.at("trunk." + name)) << name;
  }
}

TEST(PartialLoad, MissingTensorsKeepTheirValuesAndAreListed) {
  const auto from = pretrained();
  launch(2, [&](Context& context) {
    manual_seed(5);
    struct Larger : Classifier {
      Larger() { register_parameter("scale", nn::make_parameter({4}, nn::constant(7))); }
    } net;
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {});
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, optimizer); }),
                    "missing model tensor 'scale'; missing optimizer tensor 'scale.exp_avg'"));
    const LoadResult result =
        load(context, from->step(), model, optimizer, LoadOptions{.strict = false});
    EXPECT_EQ(result.model.missing, std::vector<std::string>{"scale"});
    EXPECT_EQ(result.optimizer.missing,
              (std::vector<std::string>{"scale.exp_avg", "scale.exp_avg_sq"}));
    for (const auto& part : model.sharded_parameters()) {
      if (part.name != "scale") continue;
      for (const double value : part.local.to_vector()) EXPECT_EQ(value, 7);
    }
    for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
      EXPECT_EQ(optimizer.step_counts()[i], optimizer.parameters()[i].name == "scale" ? 0 : 2);
    }
    // An optimizer without state cannot lack a tensor.
    optim::Sgd plain(model.parameters(), {});
    (void)load(context, from->step(), model, plain, LoadOptions{.strict = false});
    for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
      EXPECT_EQ(plain.step_counts()[i], plain.parameters()[i].name == "scale" ? 0 : 2);
    }
  });
}

// A checkpoint that would fill no tensor belongs to another model, however few tensors it has.
TEST(PartialLoad, ACheckpointWithoutCommonTensorsIsRefused) {
  const auto from = pretrained();
  launch(2, [&](Context& context) {
    nn::LinearImpl net(6, 7);
    ShardedModel model = fully_shard(net, context);
    EXPECT_TRUE(has(
        error_of([&] { (void)load(context, from->step(), model, LoadOptions{.strict = false}); }),
        "none of its 6 model tensors ('head.bias') is one of the 2 here"));
  });
}

TEST(PartialLoad, MomentsOfOtherParametersSurviveAFreeze) {
  const auto from = pretrained();
  Whole loaded;
  launch(2, [&](Context& context) {
    const OneThread one_thread;
    Classifier net;
    for (auto& parameter : net.trunk->named_parameters()) {
      parameter.tensor.set_requires_grad(false);
    }
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {.lr = 0.05});
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, optimizer); }),
                    "unexpected optimizer tensor 'trunk.in.bias.exp_avg'"));
    load(context, from->step(), model, optimizer,
         LoadOptions{.optimizer = [](const std::string& name) { return !is_trunk(name); }});
    loaded.add(model, &optimizer);
    train(net, optimizer, 1);
    for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
      EXPECT_EQ(optimizer.step_counts()[i], is_trunk(optimizer.parameters()[i].name) ? 0 : 3);
    }
  });
  EXPECT_EQ(loaded.counts.at("head.weight"), 2);
  for (const char* name : {"trunk.in.weight", "head.weight", "head.weight.exp_avg",
                           "head.weight.exp_avg_sq", "head.bias.exp_avg"}) {
    EXPECT_EQ(loaded.values.at(name), from->whole.values.at(name)) << name;
  }
}

// Averages of the weights in addition, as pieces that the program provides.
TEST(PartialLoad, AStepWithAdditionalTensors) {
  TemporaryFolder folder;
  Whole saved, loaded;
  const auto moved = [&](Context& context, bool saves, const PartialBody& body, Whole& after) {
    const OneThread one_thread;
    manual_seed(saves ? 3 : 99);
    Classifier net;
    ShardedModel model = fully_shard(net, context);
    optim::AdamW optimizer(model.parameters(), {.lr = 0.05});
    body(context, net, model, optimizer);
    after.add(model, &optimizer);
  };
  launch(2, [&](Context& context) {
    moved(
        context, true,
        [&](Context&, Classifier& net, ShardedModel& model, optim::Optimizer& optimizer) {
          train(net, optimizer, 1);
          State state = state_to_save(model, optimizer, {});
          const std::size_t own = state.model.size();
          for (std::size_t i = 0; i < own; ++i) {
            state.model.push_back(state.model[i]);
            state.model.back().name = "ema." + state.model[i].name;
          }
          checkpoint::save(context.communicator(), folder.path(), 1, state, {});
        },
        saved);
  });
  const std::string step = folder.path() / "step-1";
  launch(3, [&](Context& context) {
    moved(
        context, false,
        [&](Context&, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
          EXPECT_TRUE(has(error_of([&] { (void)load(context, step, model, optimizer); }),
                          "unexpected model tensor 'ema.head.bias'"));
          load(context, step, model, optimizer, LoadOptions{.model = [](const std::string& name) {
                 return !name.starts_with("ema.");
               }});
          // Loads only the averages, as the weights.
          load(context, step, model,
               LoadOptions{
                   .names = [](const std::string& name, bool) { return "ema." + name; },
                   .model = [](const std::string& name) { return name.starts_with("ema."); }});
        },
        loaded);
  });
  EXPECT_EQ(loaded.values, saved.values);
  EXPECT_EQ(loaded.counts, saved.counts);
}

// Step counts follow the names in the checkpoint, whatever the names of the parameters in the
// programs.
TEST(PartialLoad, StepsOfRenamedParametersAreRestored) {
  const StateNames renamed = [](const std::string& name, bool) { return "module." + name; };
  const auto from = pretrained({.names = renamed});
  const auto counts_after = [&](const StateNames& names) {
    Whole loaded;
    with_new(
        2, 3,
        [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
          (void)load(context, from->step(), model, optimizer, names);
        },
        &loaded);
    EXPECT_EQ(loaded.values, from->whole.values);
    return loaded.counts;
  };
  EXPECT_EQ(counts_after(renamed), from->whole.counts);
}

// Older steps store them under the names of the program that saved.
TEST(PartialLoad, StepsOfOlderVersionsAreRestored) {
  TemporaryFolder folder;
  const StateNames renamed = [](const std::string& name, bool) { return "module." + name; };
  with_new(2, 3, [&](Context& context, Classifier& net, ShardedModel& model, auto& optimizer) {
    train(net, optimizer, 2);
    State state = state_to_save(model, optimizer, {.names = renamed});
    nlohmann::json older;
    for (const auto& [name, count] : json_of(state.scalars).at("optimizer_step_counts").items()) {
      older[name.substr(std::string("module.").size())] = count;
    }
    json_of(state.scalars)["optimizer_step_counts"] = older;
    checkpoint::save(context.communicator(), folder.path(), 1, state, {});
  });
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, auto& optimizer) {
    (void)load(context, folder.path() / "step-1", model, optimizer, renamed);
    EXPECT_EQ(optimizer.step_counts(), (std::vector<std::int64_t>(6, 2)));
  });
}

TEST(PartialLoad, HalfOfAParametersStateIsRefused) {
  const auto from = pretrained();
  launch(2, [&](Context& context) {
    Classifier net;
    ShardedModel model = fully_shard(net, context);
    // Has state names of which one is also AdamW's.
    struct Other : optim::Optimizer {
      explicit Other(std::vector<nn::NamedParameter> parameters)
          : Optimizer(std::move(parameters)) {}
      [[nodiscard]] std::vector<std::string> state_names() const override {
        return {"exp_avg", "slow"};
      }
      void update(const optim::Update&) override {}
    } optimizer(model.parameters());
    EXPECT_TRUE(has(error_of([&] {
                      (void)load(context, from->step(), model, optimizer,
                                 LoadOptions{.strict = false});
                    }),
                    ".slow'; another optimizer wrote it"));
    optim::Sgd sgd(model.parameters(), {.momentum = 0.9});
    EXPECT_TRUE(has(error_of([&] {
                      (void)load(context, from->step(), model, sgd, LoadOptions{.strict = false});
                    }),
                    "none of its 12 optimizer tensors"));
  });
}

TEST(PartialLoad, TheNewestStepInPart) {
  const auto from = pretrained();
  Whole loaded;
  with_new(
      2, 5,
      [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
        const auto found = load_latest(context, from->dir(), model, optimizer,
                                       LoadOptions{.model = is_trunk, .optimizer = is_trunk});
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->found.step, 5);
      },
      &loaded);
  expect_equal_where(loaded, from->whole, is_trunk);
  with_new(
      2, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer& optimizer) {
        const auto found =
            load_latest(context, from->dir(), model, optimizer,
                        LoadOptions{.strict = false, .names = [](const std::string& name, bool) {
                                      return name == "head.bias" ? std::string() : name;
                                    }});
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->found.fit.model.unexpected, std::vector<std::string>{"head.bias"});
        EXPECT_EQ(found->found.fit.optimizer.unexpected.size(), 2u);
      });
}

// A parameter group that only the new head has is not a reason to refuse the trunk's state.
TEST(PartialLoad, GroupsMayDiffer) {
  const auto from = pretrained();
  with_new(2, 5, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    optim::AdamW grouped(model.parameters(), {.groups = {{"head.*", 10.0}}});
    const LoadOptions trunk{.model = is_trunk, .optimizer = is_trunk};
    (void)load(context, from->step(), model, grouped, trunk);
  });
  with_new(2, 3, [&](Context& context, Classifier&, ShardedModel& model, optim::Optimizer&) {
    optim::AdamW grouped(model.parameters(), {.groups = {{"head.*", 10.0}}});
    EXPECT_TRUE(has(error_of([&] { (void)load(context, from->step(), model, grouped); },
                             ErrorCode::configuration),
                    "parameter groups"));
  });
}

}  // namespace
}  // namespace tessera::checkpoint

// Models that have ended: by unwrap(), by a move, before or after their module. Nothing crashes,
// and calls that are no longer possible give the reason.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

class NetImpl : public nn::Module {
 public:
  explicit NetImpl(std::int64_t size) {
    a_ = register_module("a", nn::Linear(size, size));
    b_ = register_module("b", nn::Linear(size, 1));
  }
  Tensor forward(const Tensor& x) const { return mean(b_(relu(a_(x)))); }

 private:
  nn::Linear a_, b_;
};
TESSERA_MODULE(Net);

ShardingOptions net_options(Strategy strategy = Strategy::full_shard) {
  return {.strategy = strategy, .wrap = WrapPolicy::list({"a"})};
}

TEST(Ended, MovedFromModelsGiveAnError) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [](Context& context, ToyTransformer& net, ShardedModel& model) {
             ShardedModel other = std::move(model);
             const auto expect_ended = [](const auto& call) {
               const std::string message = message_of<std::logic_error>(call);
               EXPECT_NE(message.find("this ShardedModel has ended"), std::string::npos) << message;
             };
             // NOLINTBEGIN(bugprone-use-after-move): that is the test
             expect_ended([&] { model.clip_grad_norm(1.0); });
             expect_ended([&] { (void)model.parameters(); });
             expect_ended([&] { (void)model.no_sync(); });
             expect_ended([&] { (void)model.unsharded(); });
             expect_ended([&] { (void)model.describe(); });
             expect_ended([&] { model.unwrap(); });
             expect_ended([&] { (void)model.sharded_parameters(); });
             // NOLINTEND(bugprone-use-after-move)
             train_once(context, net);
             EXPECT_GT(other.clip_grad_norm(1.0), 0);
             model = std::move(other);
             EXPECT_GT(model.clip_grad_norm(1.0), 0);
           });
}

// Both would train nothing: the module has other tensors since it was sharded.
TEST(Ended, HandlesFromBeforeShardingAreErrors) {
  for (const int world : {1, 4}) {
    for (ShardingOptions options : all_strategies(world)) {
      options.wrap = WrapPolicy::list({"a"});
      launch(world, [&](Context& context) {
        const OneThread one_thread;
        const Net net(4);
        const Tensor kept = net->named_parameters()[0].tensor;
        optim::AdamW early(net->named_parameters(), {.lr = 0.1});
        const ShardedModel model = fully_shard(*net, context, options);
        net(Tensor::full({3, 4}, 0.5)).backward();
        const std::string of_step = message_of<std::logic_error>([&] { early.step(); });
        EXPECT_NE(of_step.find("was sharded after this optimizer was made"), std::string::npos)
            << of_step;
        EXPECT_EQ(early.step_counts(), std::vector<std::int64_t>(4, 0));
        const std::string of_use = message_of<std::logic_error>([&] {
          (void)matmul(kept, Tensor::full({4, 2}, 1));
        });
        EXPECT_NE(of_use.find("was replaced by fully_shard()"), std::string::npos) << of_use;
      });
    }
  }
}

TEST(Ended, HandlesFromBeforeShardingOnMetaSayTheSame) {
  launch(1, [&](Context& context) {
    const OneThread one_thread;
    const Net net = [] {
      const DeviceGuard deferred(Device::meta());
      return Net(4);
    }();
    const Tensor kept = net->named_parameters()[0].tensor;
    const ShardedModel model = fully_shard(*net, context, net_options());
    const std::string text = message_of<std::logic_error>([&] { (void)kept.to_vector(); });
    EXPECT_NE(text.find("was replaced by fully_shard()"), std::string::npos) << text;
  });
}

// A plan shards the module in thought only.
TEST(Ended, HandlesStayValidAfterAPlan) {
  const Net net(4);
  const Tensor kept = net->named_parameters()[0].tensor;
  const std::vector<double> values = kept.to_vector();
  PlanOptions options;
  options.sharding = net_options();
  options.loss = [&](Device device) { return net(Tensor::full({3, 4}, 0.5).to(device)); };
  (void)plan(*net, {.ranks = 2}, options);
  EXPECT_EQ(kept.to_vector(), values);
  EXPECT_EQ(net->named_parameters()[0].tensor.impl(), kept.impl());
}

// A write to what an ended model held would change no module. Reading it does no harm.
TEST(Ended, WritesToFormerParametersAreRefused) {
  for (const ShardingOptions& options : all_strategies(2)) {
    for (const bool unwraps : {true, false}) {
      launch(2, [&](Context& context) {
        manual_seed(3);
        ToyTransformer net;
        std::optional<ShardedModel> model(fully_shard(net, context, options));
        const std::vector<nn::NamedParameter> parameters = model->parameters();
        if (unwraps) model->unwrap();
        model.reset();
        for (const auto& parameter : parameters) {
          const std::vector<double> values = parameter.tensor.to_vector();
          Tensor local = parameter.tensor;
          const auto refuse = [&](const std::function<void()>& write) {
            const std::string message = message_of<std::logic_error>(write);
            EXPECT_NE(message.find("whose ShardedModel has ended: no module would see it"),
                      std::string::npos)
                << message;
          };
          if (local.elements() > 0) refuse([&] { local.data_as<float>()[0] = 7; });
          refuse([&] { local.copy_from(Tensor::full(local.shape(), 7)); });
          EXPECT_EQ(parameter.tensor.to_vector(), values);
        }
      });
    }
  }
}

TEST(Ended, ScopesMayOutliveTheirModel) {
  for (const ShardingOptions& options : all_strategies(2)) {
    launch(2, [&](Context& context) {
      manual_seed(3);
      ToyTransformer net;
      std::optional<ShardedModel> model;
      model.emplace(net, context, options);
      std::optional<ShardedModel::NoSync> sums;
      sums.emplace(*model);
      train_once(context, net);
      model.reset();
      sums.reset();
      ToyTransformer another;
      model.emplace(another, context, options);
      {
        const auto whole = model->unsharded();
        model.reset();
      }
    });
  }
}

TEST(Ended, TheModuleMayBeDestroyedFirst) {
  for (const ShardingOptions& options : all_strategies(2)) {
    launch(2, [&](Context& context) {
      manual_seed(3);
      auto net = std::make_unique<ToyTransformer>();
      ShardedModel model = fully_shard(*net, context, options);
      optim::AdamW optimizer(model.parameters(), {});
      train_once(context, *net);
      net.reset();
      EXPECT_GT(model.clip_grad_norm(1.0), 0);
      optimizer.step();
      { const auto whole = model.unsharded(); }
      const std::string message = message_of<std::logic_error>([&] { model.unwrap(); });
      EXPECT_NE(message.find("the module has gone"), std::string::npos) << message;
    });
  }
}

TEST(Ended, AHandleIsKept) {
  launch(2, [](Context& context) {
    manual_seed(3);
    std::optional<Net> net;
    net.emplace(4);
    const std::weak_ptr<nn::Module> alive = net->pointer();
    {
      ShardedModel model = fully_shard(*net, context, net_options());
      net.reset();
      EXPECT_FALSE(alive.expired());
      model.unwrap();
    }
    EXPECT_TRUE(alive.expired());
  });
}

TEST(Ended, OptimizersOfAModelThatWasReplaced) {
  for (const ShardingOptions& options : all_strategies(2)) {
    launch(2, [&](Context& context) {
      manual_seed(3);
      ToyTransformer first, second;
      ShardedModel model = fully_shard(first, context, options);
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      train_once(context, first);
      model = fully_shard(second, context, options);
      const std::string message = message_of<std::logic_error>([&] { optimizer.step(); });
      EXPECT_NE(message.find("whose ShardedModel has ended"), std::string::npos) << message;
    });
  }
}

TEST(Ended, ErrorsOfParametersExplainHowToKeepValues) {
  launch(2, [](Context& context) {
    manual_seed(3);
    Net net(4);
    { const ShardedModel model = fully_shard(*net, context, net_options()); }
    for (const std::string& message : {message_of<std::logic_error>([&] {
                                         (void)net->named_parameters().front().tensor.to_vector();
                                       }),
                                       message_of<std::logic_error>([&] {
                                         (void)net(Tensor::zeros({2, 4}));
                                       }),
                                       message_of<std::logic_error>([&] {
                                         const auto again =
                                             fully_shard(*net, context, net_options());
                                       })}) {
      EXPECT_NE(message.find("has ended"), std::string::npos) << message;
      EXPECT_NE(message.find("unwrap()"), std::string::npos) << message;
    }
  });
}

// With one root or two, a module has one ShardedModel.
TEST(Ended, AModuleOfTwoRootsIsShardedOnce) {
  launch(2, [](Context& context) {
    Net shared(4);
    class Root : public nn::Module {
     public:
      explicit Root(const Net& net) { register_module("net", net); }
    };
    Root one(shared), two(shared);
    const ShardedModel model = fully_shard(one, context);
    const std::string message =
        message_of<std::logic_error>([&] { const auto again = fully_shard(two, context); });
    EXPECT_NE(message.find("is sharded already"), std::string::npos) << message;
  });
}

TEST(Ended, NothingIsRegisteredInAShardedModule) {
  launch(2, [](Context& context) {
    class Growing : public nn::Module {
     public:
      Growing() { register_module("a", nn::Linear(4, 4)); }
      void grow() { register_module("late", nn::Linear(4, 4)); }
      void grow_parameter() {
        register_parameter("scale", nn::make_parameter({4}, nn::constant(1)));
      }
    };
    Growing net;
    {
      const ShardedModel model = fully_shard(net, context);
      for (const auto& grow : {&Growing::grow, &Growing::grow_parameter}) {
        const std::string message = message_of<std::logic_error>([&] { (net.*grow)(); });
        EXPECT_NE(message.find("Register before fully_shard()"), std::string::npos) << message;
      }
    }
    net.grow();
    EXPECT_EQ(net.children().size(), 2U);
  });
}

// Unwrapping restores the exact values, and training continues under any other strategy.
TEST(Unwrap, RestoresTheValues) {
  for (const DType dtype : {float32, bfloat16}) {
    for (ShardingOptions options : all_strategies(2)) {
      options.param_dtype = dtype;
      launch(2, [&](Context& context) {
        const OneThread one_thread;
        manual_seed(3);
        ToyTransformer net;
        std::map<std::string, std::vector<double>> before;
        {
          ShardedModel model = fully_shard(net, context, options);
          optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
          train_once(context, net);
          optimizer.step();
          std::map<std::string, std::vector<std::pair<std::int64_t, std::vector<double>>>> parts;
          for (const ShardedParameter& part : model.sharded_parameters()) {
            before[part.name].resize(static_cast<std::size_t>(part.shape.elements()));
            const std::vector<double> mine = part.local.to_vector();
            for (std::size_t i = 0; i < mine.size(); ++i)
              before[part.name][static_cast<std::size_t>(part.first) + i] = mine[i];
          }
          model.unwrap();
          const std::string message = message_of<std::logic_error>([&] { optimizer.step(); });
          EXPECT_NE(message.find("has ended"), std::string::npos) << message;
          for (const auto& parameter : net.named_parameters()) {
            EXPECT_EQ(parameter.tensor.dtype(), float32);
            EXPECT_TRUE(parameter.tensor.requires_grad());
            const std::vector<double> whole = parameter.tensor.to_vector();
            ASSERT_EQ(whole.size(), before[parameter.name].size());
            // This rank's part is there; the other rank's part was not all zero.
            for (std::size_t i = 0; i < whole.size(); ++i) {
              if (before[parameter.name][i] != 0) {
                EXPECT_EQ(whole[i], before[parameter.name][i]);
              }
            }
          }
        }
        // All ranks have the same values again; otherwise this would be refused.
        ShardedModel again = fully_shard(net, context, toy_options(Strategy::full_shard));
        train_once(context, net);
        EXPECT_GT(again.clip_grad_norm(1.0), 0);
      });
    }
  }
}

TEST(Unwrap, KeepsFrozenAndTiedParameters) {
  launch(3, [](Context& context) {
    manual_seed(3);
    ToyTransformer net;
    Tensor(net.named_parameters()[5].tensor).set_requires_grad(false);
    std::vector<std::vector<double>> before;
    for (const auto& parameter : net.named_parameters())
      before.push_back(parameter.tensor.to_vector());
    ShardedModel model = fully_shard(net, context, toy_options(Strategy::full_shard));
    model.unwrap();
    const auto parameters = net.named_parameters();
    ASSERT_EQ(parameters.size(), before.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(parameters[i].tensor.to_vector(), before[i]) << parameters[i].name;
      EXPECT_EQ(parameters[i].tensor.requires_grad(), i != 5);
    }
    const auto batch = toy_batch(context.rank(), 2);
    net.loss(batch.ids, batch.targets).backward();  // an ordinary module
    EXPECT_TRUE(parameters.front().tensor.grad().defined());
  });
}

}  // namespace
}  // namespace tessera::testing

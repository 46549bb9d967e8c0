// Reading and writing the parameters of a sharded model, and refused operations.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "base/error.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::message_of;
using testing::on_ranks;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;
using testing::train_once;

// Inside the scope, every parameter has the values that the ranks hold together.
TEST(UnshardedScope, ReadsTheRightValues) {
  for (ShardingOptions options : all_strategies(4)) {
    for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
      options.param_dtype = dtype;
      testing::Collected collected;
      std::mutex mutex;
      std::map<std::string, std::vector<double>> seen;
      on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
        optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
        train_once(context, net);
        optimizer.step();
        collected.add(model);
        const auto whole = model.unsharded();
        const std::lock_guard lock(mutex);
        for (const auto& [name, tensor, shape] : net.named_parameters()) {
          EXPECT_EQ(tensor.dtype(), dtype.value_or(float32));
          const auto values = tensor.to_vector();
          if (!seen.contains(name)) seen[name] = values;
          EXPECT_EQ(values, seen[name]) << name;
        }
      });
      for (const auto& [name, values] : collected.values()) {
        const auto whole = Tensor::from(values, {static_cast<std::int64_t>(values.size())});
        EXPECT_EQ(seen.at(name), cast(whole, dtype.value_or(float32)).to_vector())
            << name << ' ' << testing::describe(options);
      }
    }
  }
}

TEST(UnshardedScope, RefusesWrites) {
  for (const ShardingOptions& options : all_strategies(2)) {
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      train_once(context, net);
      {
        const auto whole = model.unsharded();
        const std::string refusal =
            "parameters cannot change inside an unsharded(model) scope; if this only reads, "
            "take "
            "the pointer from a const Tensor";
        EXPECT_EQ(message_of<std::logic_error>([&] { optimizer.step(); }), refusal);
        Tensor local = model.parameters().back().tensor;
        EXPECT_EQ(message_of<std::logic_error>([&] { local.copy_from(local.clone()); }), refusal);
        EXPECT_EQ(message_of<std::logic_error>([&] { (void)local.data(); }), refusal);
        Tensor view = net.named_parameters().back().tensor;
        EXPECT_EQ(message_of<std::logic_error>([&] { view.copy_from(view.clone()); }),
                  "the gathered parameters of the root unit are a copy that is only read; write "
                  "inside ShardedModel::write_unsharded(), or to the local tensors of "
                  "ShardedModel::parameters()");
        EXPECT_NE(message_of<std::logic_error>([&] {
                    (void)view.data_as<float>();
                  }).find("a copy that is only read"),
                  std::string::npos);
      }
      optimizer.step();  // allowed after the scope
    });
  }
}

TEST(ShardedParameters, NameTheirUnitWhenUsedOutside) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  on_ranks(2, options, [&](Context&, ToyTransformer& net, ShardedModel&) {
    const Tensor weight = net.named_parameters().at(5).tensor;
    const std::string message = message_of<std::logic_error>([&] { (void)weight.to_vector(); });
    EXPECT_NE(message.find("unit blocks.0 is sharded now: its parameters can be read inside"),
              std::string::npos)
        << message;
  });
}

// A forward that uses the root's parameters gathers them automatically. Reading them on a single
// rank is an error there, not a collective that waits for the others.
TEST(ShardedParameters, OfTheRootCannotBeReadByOneRankAlone) {
  for (const ShardingOptions& options : all_strategies(2)) {
    if (row_of(options.strategy).gathered == Gathered::until_step) continue;  // they stay gathered
    on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
      Tensor root;
      for (const auto& parameter : net.named_parameters()) {
        if (parameter.name == "positions") root = parameter.tensor;
      }
      const auto expect_refused = [&] {
        if (!context.is_main()) return;
        const auto refused = [](const auto& read) {
          const std::string message = message_of<std::logic_error>(read);
          EXPECT_NE(message.find("the root unit is sharded now"), std::string::npos) << message;
          EXPECT_NE(message.find("unsharded(model)"), std::string::npos) << message;
        };
        refused([&] { (void)root.to_vector(); });
        refused([&] { (void)root.clone(); });
        refused([&] { Tensor::empty(root.shape(), root.dtype()).copy_from(root); });
      };
      if (shards_of(options, 2) == 1) return;  // nothing is gathered
      expect_refused();
      train_once(context, net);
      expect_refused();
      train_once(context, net);
      const auto whole = model.unsharded();
      EXPECT_EQ(root.to_vector().size(), static_cast<std::size_t>(root.elements()));
    });
  }
}

// Parameters that were frozen when the module was sharded have no memory for a gradient.
TEST(ShardedParameters, FrozenParametersStayFrozen) {
  for (const ShardingOptions& options : all_strategies(2)) {
    launch(2, [&](Context& context) {
      manual_seed(3);
      ToyTransformer net;
      Tensor(net.named_parameters().back().tensor).set_requires_grad(false);
      ShardedModel model = fully_shard(net, context, options);
      const auto expect_refused = [&](const nn::NamedParameter& parameter, bool value) {
        Tensor tensor = parameter.tensor;
        const std::string message =
            message_of<std::logic_error>([&] { tensor.set_requires_grad(value); });
        EXPECT_NE(message.find("parameter " + parameter.name + " was frozen when"),
                  std::string::npos)
            << message;
        EXPECT_NE(message.find("before fully_shard()"), std::string::npos) << message;
        EXPECT_EQ(tensor.requires_grad(), !value);
        tensor.set_requires_grad(!value);  // the current value
      };
      expect_refused(net.named_parameters().back(), true);
      train_once(context, net);
    });
  }
}

// After loading a checkpoint, earlier gathered copies must have the new values.
TEST(ShardedParameters, WritesInvalidateGatheredCopies) {
  for (ShardingOptions options : all_strategies(2)) {
    for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
      options.param_dtype = dtype;
      on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
        train_once(context, net);  // gathers all units that stay gathered
        (void)net.loss(toy_batch(0, 1).ids, toy_batch(0, 1).targets);
        for (const auto& parameter : model.parameters()) {
          Tensor(parameter.tensor).copy_from(Tensor::full({parameter.tensor.elements()}, 0.25));
        }
        const NoGradGuard no_grad;
        const auto batch = toy_batch(0, 1);
        const double loss = net.loss(batch.ids, batch.targets).item();
        EXPECT_NEAR(loss, std::log(static_cast<double>(testing::toy_vocabulary)), 1e-2)
            << testing::describe(options);  // all logits are equal
        const auto whole = model.unsharded();
        for (const auto& parameter : net.named_parameters()) {
          for (const double value : parameter.tensor.to_vector()) EXPECT_EQ(value, 0.25);
        }
      });
    }
  }
}

TEST(Structures, DifferentModulesAreRefusedByName) {
  class Sized : public nn::Module {
   public:
    explicit Sized(std::int64_t size) {
      register_module("in", nn::Linear(4, 3));
      register_module("out", nn::Linear(3, size));
    }
  };
  const std::string shape = message_of<Error>([] {
    launch(3, [](Context& context) {
      Sized net(context.rank() == 2 ? 6 : 5);
      const auto model = fully_shard(net, context, {.wrap = WrapPolicy::list({"out"})});
    });
  });
  EXPECT_NE(shape.find("ranks 0 and 2 shard different modules"), std::string::npos) << shape;
  EXPECT_NE(shape.find("rank 0 has \"unit out: parameter out.weight"), std::string::npos) << shape;
  EXPECT_NE(shape.find("6"), std::string::npos) << shape;

  const std::string strategy = message_of<Error>([] {
    launch(2, [](Context& context) {
      Sized net(5);
      const auto model = fully_shard(
          net, context,
          {.strategy = context.is_main() ? Strategy::full_shard : Strategy::shard_grad_op});
    });
  });
  EXPECT_NE(strategy.find("strategy SHARD_GRAD_OP"), std::string::npos) << strategy;
}

TEST(Structures, ModuleShardedTwice) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context& context, ToyTransformer& net, ShardedModel&) {
             const std::string message = message_of<std::logic_error>([&] {
               const auto again = fully_shard(net, context, toy_options(Strategy::full_shard));
             });
             EXPECT_EQ(message,
                       "module blocks.0 is sharded already: a module has one ShardedModel at a "
                       "time");
           });
}

// The module outlives its sharding: its parameters are gone, and using it gives an error.
TEST(Structures, ModuleAfterItsModel) {
  for (const ShardingOptions& options : all_strategies(2)) {
    launch(2, [&](Context& context) {
      ToyTransformer net;
      {
        const ShardedModel model = fully_shard(net, context, options);
        train_once(context, net);
      }
      const Tensor parameter = net.named_parameters().front().tensor;
      EXPECT_THROW((void)parameter.to_vector(), std::logic_error);
    });
  }
}

// A graph that outlives its model gives an error, and accesses nothing of the model.
TEST(Structures, GraphAfterItsModel) {
  for (ShardingOptions options : all_strategies(2)) {
    for (const bool wrapped : {true, false}) {
      if (!wrapped) options.wrap = WrapPolicy::none();
      launch(2, [&](Context& context) {
        manual_seed(3);
        ToyTransformer net;
        const auto batch = toy_batch(context.rank(), 2);
        Tensor loss;
        {
          const ShardedModel model = fully_shard(net, context, options);
          train_once(context, net);
          loss = net.loss(batch.ids, batch.targets);
        }
        const std::string message = message_of<std::logic_error>([&] { loss.backward(); });
        EXPECT_NE(message.find("ShardedModel"), std::string::npos) << message;
        EXPECT_NE(message.find("has ended"), std::string::npos) << message;
        loss = {};
        // Only the ShardedModel can give the module memory for new parameters.
        EXPECT_NE(message_of<std::logic_error>([&] {
                    (void)net.loss(batch.ids, batch.targets);
                  }).find("has ended"),
                  std::string::npos);
      });
    }
  }
}

TEST(Structures, DescribeNamesUnits) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [&](Context&, ToyTransformer&, ShardedModel& model) {
             const std::string text = model.describe();
             EXPECT_NE(text.find("FULL_SHARD over 2 ranks, 4 units"), std::string::npos) << text;
             EXPECT_NE(text.find("blocks.2"), std::string::npos) << text;
           });
}

}  // namespace
}  // namespace tessera

// Calls by which users change the schedule: unshard(), reshard(), and whether backwards reduce and
// free.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::message_of;
using testing::on_ranks;
using testing::toy_batch;
using testing::toy_options;
using testing::ToyTransformer;

void step(const Context& context, ToyTransformer& net, optim::Optimizer& optimizer) {
  testing::train_once(context, net);
  optimizer.step();
  optimizer.zero_grad();
}

// The number of collectives of a pass after a call of `before`.
std::uint64_t collectives_of_a_pass(const ShardingOptions& options,
                                    const std::function<void(ShardedModel&)>& before) {
  std::uint64_t result = 0;
  on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
    optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
    for (int i = 0; i < 2; ++i) step(context, net, optimizer);
    before(model);
    const std::uint64_t begin = model.communication().collectives;
    testing::train_once(context, net);
    if (context.is_main()) result = model.communication().collectives - begin;
  });
  return result;
}

TEST(Unshard, SavesTheForwardAGather) {
  const ShardingOptions options = toy_options(Strategy::full_shard);
  const std::uint64_t usual = collectives_of_a_pass(options, [](ShardedModel&) {});
  for (const bool async_op : {false, true}) {
    const auto unshard = [&](const char* unit) {
      return [=](ShardedModel& model) { model.unshard(unit, async_op); };
    };
    EXPECT_EQ(collectives_of_a_pass(options, unshard("")), usual - 1);
    EXPECT_EQ(collectives_of_a_pass(options, unshard("blocks.0")), usual - 1);
  }
  // A freed unit is gathered again.
  EXPECT_EQ(collectives_of_a_pass(options,
                                  [](ShardedModel& model) {
                                    model.unshard("blocks.0", true);
                                    model.reshard("blocks.0");
                                    model.reshard("blocks.1");  // it is not gathered: no effect
                                  }),
            usual);
}

TEST(Unshard, MakesParametersReadableUntilReshard) {
  for (const ShardingOptions& options : testing::all_strategies(2)) {
    on_ranks(2, options, [&](Context&, ToyTransformer& net, ShardedModel& model) {
      const auto parameters = net.named_parameters();
      const auto found =
          std::find_if(parameters.begin(), parameters.end(), [](const nn::NamedParameter& p) {
            return p.name.starts_with("blocks.1.") && p.tensor.dimensions() == 2;
          });
      ASSERT_NE(found, parameters.end());
      model.unshard("blocks.1");
      EXPECT_EQ(found->tensor.to_vector().size(),
                static_cast<std::size_t>(found->tensor.elements()));
      model.reshard("blocks.1");
      if (options.group_size == 1 || options.strategy == Strategy::no_shard) return;  // masters
      EXPECT_THROW((void)found->tensor.to_vector(), std::logic_error) << testing::describe(options);
    });
  }
}

// More units than have shared buffers: their memory is allocated, and freed with them.
TEST(Unshard, FreesItsMemory) {
  on_ranks(2, toy_options(Strategy::full_shard),
           [](Context& context, ToyTransformer& net, ShardedModel& model) {
             const std::uint64_t bytes = model.communication().buffer_bytes;
             for (const std::string& unit : model.units()) model.unshard(unit, true);
             EXPECT_GT(model.communication().buffer_bytes, bytes);
             for (const std::string& unit : model.units()) model.reshard(unit);
             EXPECT_EQ(model.communication().buffer_bytes, bytes);
             for (const std::string& unit : model.units()) model.unshard(unit);
             testing::train_once(context, net);
             EXPECT_EQ(model.communication().buffer_bytes, bytes);
           });
}

// All strategies on four ranks, also with units kept whole or in part against the strategy's
// default.
std::vector<ShardingOptions> all_schedules() {
  std::vector<ShardingOptions> all = testing::all_strategies(4);
  for (const ReshardAfterForward reshard : {ReshardAfterForward(2), ReshardAfterForward(false)}) {
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.reshard_after_forward = reshard;
    options.reshard_after_backward = reshard != ReshardAfterForward(false);
    all.push_back(options);
    options.limit_all_gathers = 1;
    options.keep_unsharded_memory = true;
    all.push_back(options);
  }
  return all;
}

// Under every schedule, with any of these calls in a step; the second step updates nothing, as
// after an overflow in fp16.
TEST(Unshard, ChangesNoBit) {
  for (const ShardingOptions& options : all_schedules()) {
    testing::Collected usual, asked;
    const auto train = [&](bool by_hand, testing::Collected& collected) {
      on_ranks(4, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
        optim::Sgd optimizer(model.parameters(), {.lr = 1e-2});
        for (int i = 0; i < 4; ++i) {
          const auto batch = toy_batch(4 * i + context.rank(), 2);
          if (by_hand) model.unshard("blocks.2", i == 1);
          const Tensor hidden = net.embed(batch.ids);
          if (by_hand) model.reshard(i == 0 ? "" : "blocks.0");
          const Tensor loss = cross_entropy(net.head(hidden), batch.targets);
          if (by_hand) {
            model.reshard("blocks.2");
            model.unshard("blocks.0", true);
            if (i > 1) const auto whole = model.unsharded();
          }
          loss.backward();
          if (by_hand) model.unshard();
          if (by_hand && i > 0) {
            const auto whole = model.unsharded();
            const NoGradGuard no_grad;
            (void)net.loss(batch.ids, batch.targets);
          }
          if (i != 1) optimizer.step();
          optimizer.zero_grad();
          if (by_hand && i == 2) model.unshard("blocks.1", true);
        }
        collected.add(model);
      });
    };
    train(false, usual);
    train(true, asked);
    EXPECT_EQ(usual.values(), asked.values())
        << testing::describe(options) << ", limit " << options.limit_all_gathers;
  }
}

// Calls a function in the middle of its forward.
class Calling : public nn::Module {
 public:
  Calling() { layer_ = register_module("layer", nn::Linear(4, 4)); }
  Tensor forward(const Tensor& x) {
    if (inside) inside();
    return layer_(x);
  }
  std::function<void()> inside;

 private:
  nn::Linear layer_;
};
class Outer : public nn::Module {
 public:
  Outer() {
    calling_ = register_module("calling", nn::ModuleHandle<Calling>(std::make_shared<Calling>()));
    register_parameter("scale", nn::make_parameter({4}, nn::constant(1)));
  }
  Tensor forward(const Tensor& x) { return sum(calling_(x * parameter("scale"))); }
  Calling& calling() { return *calling_; }

 private:
  nn::ModuleHandle<Calling> calling_;
};

TEST(ByHand, MisuseIsNamed) {
  launch(2, [](Context& context) {
    Outer net;
    ShardedModel model = fully_shard(net, context, {.wrap = WrapPolicy::list({"calling"})});
    const auto message = [&](const std::function<void()>& action) {
      return message_of<std::logic_error>(action);
    };
    EXPECT_EQ(message([&] { model.unshard("coling"); }),
              "no unit is called coling; units are the root, which is \"\", and calling");
    std::string in_unit, in_root;
    net.calling().inside = [&] {
      in_unit = message([&] { model.reshard("calling"); });
      in_root = message([&] { model.reshard(); });
    };
    const Tensor loss = net.forward(Tensor::full({2, 4}, 1.0));
    EXPECT_EQ(in_unit,
              "reshard of unit calling in the middle of its forward: its parameters are in use (in "
              "calling, of class Calling)");
    EXPECT_EQ(in_root,
              "reshard of the root unit in the middle of a forward: its parameters are in use (in "
              "calling, of class Calling)");
    loss.backward();
    {
      const auto scope = model.unsharded();
      EXPECT_EQ(message([&] { model.reshard("calling"); }),
                "reshard of unit calling inside an unsharded(model) scope, which keeps it");
    }
    {
      const auto scope = model.no_sync();
      EXPECT_NE(message([&] { model.set_requires_gradient_sync(true); }).find("no_sync() scope"),
                std::string::npos);
    }
    model.set_requires_gradient_sync(false);
    EXPECT_NE(message([&] { (void)model.no_sync(); }).find("set_requires_gradient_sync(false)"),
              std::string::npos);
    model.set_requires_gradient_sync(true);
    EXPECT_NE(message_of<Error>([&] {
                model.set_reshard_after_backward(false);
              }).find("set reshard_after_forward: false as well"),
              std::string::npos);
  });
}

TEST(ByHand, IsRefusedInTheMiddleOfABackward) {
  on_ranks(
      2, toy_options(Strategy::shard_grad_op),
      [](Context& context, ToyTransformer& net, ShardedModel& model) {
        const auto batch = toy_batch(context.rank(), 2);
        const Tensor hidden = net.embed(batch.ids);
        const Tensor out = hidden.detach();
        std::vector<std::string> messages;
        autograd::record(
            Op::reshape, {hidden}, {out},
            [&](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
              using E = std::logic_error;
              messages.push_back(message_of<E>([&] { model.reshard(); }));
              messages.push_back(message_of<E>([&] { model.set_requires_gradient_sync(false); }));
              messages.push_back(message_of<E>([&] { model.set_reshard_after_backward(false); }));
              sink.add(0, dout[0]);
            });
        cross_entropy(net.head(out), batch.targets).backward();
        ASSERT_EQ(messages.size(), 3u);
        for (const std::string& message : messages) {
          EXPECT_NE(message.find("in the middle of a backward"), std::string::npos) << message;
        }
      });
}

// The same sums as with no_sync(), for programs that cannot put a micro-batch into a scope.
TEST(GradientSync, IsNoSyncWithoutAScope) {
  for (const ShardingOptions& options : testing::all_strategies(2)) {
    testing::Collected by_scope, by_call;
    std::uint64_t bytes[2] = {};
    const auto train = [&](bool scoped, testing::Collected& collected) {
      on_ranks(2, options, [&](Context& context, ToyTransformer& net, ShardedModel& model) {
        optim::Sgd optimizer(model.parameters(), {.lr = 1e-2});
        for (int i = 0; i < 2; ++i) {
          if (scoped) {
            const auto scope = model.no_sync();
            testing::train_once(context, net);
          } else {
            model.set_requires_gradient_sync(false);
            testing::train_once(context, net);
            model.set_requires_gradient_sync(true);
          }
          step(context, net, optimizer);
        }
        collected.add(model);
        if (context.is_main()) bytes[scoped ? 0 : 1] = model.communication().bytes;
      });
    };
    train(true, by_scope);
    train(false, by_call);
    EXPECT_EQ(by_scope.values(), by_call.values()) << testing::describe(options);
    EXPECT_EQ(bytes[0], bytes[1]) << testing::describe(options);
  }
}

// It may be turned on for an accumulation and off for its last pass, as users of FSDP2 do.
TEST(ReshardAfterBackward, MayChangeBetweenPasses) {
  on_ranks(2, toy_options(Strategy::shard_grad_op),
           [](Context& context, ToyTransformer& net, ShardedModel& model) {
             const auto gathers = [&] {
               const std::uint64_t before = model.communication().collectives;
               testing::train_once(context, net);
               const auto units = static_cast<std::uint64_t>(model.units().size());
               return model.communication().collectives - before - units;  // without reductions
             };
             model.set_reshard_after_backward(false);
             EXPECT_EQ(gathers(), 4u);
             EXPECT_EQ(gathers(), 0u);
             model.set_reshard_after_backward(true);
             EXPECT_EQ(gathers(), 0u);  // they were kept, and are freed from now on
             EXPECT_EQ(gathers(), 4u);
           });
}

}  // namespace
}  // namespace tessera

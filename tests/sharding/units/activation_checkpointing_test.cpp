// Recomputation with sharding: the bits and the communication of a run without it.
#include "sharding/units/activation_checkpointing.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/recompute.h"
#include "sharding/strategies/strategy_bits.h"
#include "sharding/units/shared_module.h"

namespace tessera {
namespace {

using testing::message_of;
using testing::same_bits;
using testing::toy_options;
using testing::train_toy;

ShardingOptions recomputing(ShardingOptions options,
                            ActivationCheckpointing how = ActivationCheckpointing::full) {
  options.activation_checkpointing = how;
  return options;
}

TEST(ActivationCheckpointing, EveryStrategyGivesTheBitsWithout) {
  const testing::TrainingCase what{.dropout = 0.1, .micro_batches = 2, .max_norm = 0.05};
  for (const int world : {1, 2, 4}) {
    const auto expected = train_toy(world, toy_options(Strategy::no_shard), what);
    for (const ShardingOptions& options : testing::all_strategies(world)) {
      EXPECT_TRUE(same_bits(expected, train_toy(world, recomputing(options), what)))
          << testing::describe(options) << " on " << world << " ranks";
    }
  }
}

TEST(ActivationCheckpointing, EveryChoiceOfModulesGivesTheBitsWithout) {
  constexpr int world = 3;
  const testing::TrainingCase what{.dropout = 0.1, .micro_batches = 2, .no_sync = true};
  for (const std::optional<DType> dtype : {std::optional<DType>{}, std::optional(bfloat16)}) {
    ShardingOptions plain = toy_options(Strategy::full_shard);
    plain.param_dtype = dtype;
    const auto expected = train_toy(world, plain, what);
    for (const auto how : {ActivationCheckpointing::full, ActivationCheckpointing::selective}) {
      ShardingOptions options = recomputing(plain, how);
      EXPECT_TRUE(same_bits(expected, train_toy(world, options, what)));
      options.activation_checkpointing_every = 2;
      EXPECT_TRUE(same_bits(expected, train_toy(world, options, what)));
      options.activation_checkpointing_cls = {"ToyAttention", "Linear"};
      EXPECT_TRUE(same_bits(expected, train_toy(world, options, what)));
    }
  }
}

TEST(ActivationCheckpointing, PrefetchChangesNoBit) {
  const testing::TrainingCase what{.dropout = 0.1};
  constexpr int world = 2;
  const auto expected = train_toy(world, toy_options(Strategy::no_shard), what);
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    for (const auto prefetch :
         {BackwardPrefetch::none, BackwardPrefetch::pre, BackwardPrefetch::post}) {
      ShardingOptions options = recomputing(toy_options(strategy));
      options.backward_prefetch = prefetch;
      options.forward_prefetch = prefetch != BackwardPrefetch::none;
      EXPECT_TRUE(same_bits(expected, train_toy(world, options, what)))
          << testing::describe(options) << " " << static_cast<int>(prefetch);
    }
  }
}

// The bytes and collectives of the third step, and the collective memory after it.
CommunicationStatistics communication_of(const ShardingOptions& options, int world) {
  CommunicationStatistics third;
  testing::on_ranks(world, options, [&](Context& context, auto& net, ShardedModel& model) {
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
    CommunicationStatistics before;
    for (int step = 0; step < 3; ++step) {
      before = model.communication();
      testing::train_once(context, net);
      optimizer.step();
      optimizer.zero_grad();
    }
    if (!context.is_main()) return;
    third = model.communication();
    third.bytes -= before.bytes;
    third.collectives -= before.collectives;
  });
  return third;
}

// The second run uses the parameters that the backward gathers anyway.
TEST(ActivationCheckpointing, MovesNoMoreBytes) {
  constexpr int world = 4;
  for (const ShardingOptions& options : testing::all_strategies(world)) {
    const CommunicationStatistics plain = communication_of(options, world);
    const CommunicationStatistics again = communication_of(recomputing(options), world);
    EXPECT_GT(plain.bytes, 0u);
    EXPECT_EQ(again.bytes, plain.bytes) << testing::describe(options);
    EXPECT_EQ(again.collectives, plain.collectives) << testing::describe(options);
    EXPECT_EQ(again.buffers, plain.buffers) << testing::describe(options);
    EXPECT_EQ(again.buffer_bytes, plain.buffer_bytes) << testing::describe(options);
  }
}

TEST(ActivationCheckpointing, UnitsThatAreSharedNestedTiedAndFrozenGiveTheBitsWithout) {
  const testing::TrainingCase what{.dropout = 0.1, .micro_batches = 2, .max_norm = 0.05};
  for (const int world : {1, 3}) {
    const auto train = [&](ShardingOptions options, bool again) {
      options.wrap = WrapPolicy::transformer({"ToyBlock", "SharedPair"});
      return testing::train_ranks(world, options, what, [again](double) {
        return std::make_unique<testing::SharedUnits>(again);
      });
    };
    const auto expected = train(toy_options(Strategy::no_shard), false);
    for (const ShardingOptions& options : testing::all_strategies(world)) {
      EXPECT_TRUE(same_bits(expected, train(options, true))) << testing::describe(options);
      EXPECT_TRUE(same_bits(expected, train(recomputing(options), true)))
          << testing::describe(options) << " and units";
    }
  }
}

TEST(ActivationCheckpointing, ChoosesEveryNthOfTheOutermost) {
  testing::SharedUnits net(false);
  const auto chosen = [&](const WrapPolicy& wrap, std::vector<std::string> classes, int every) {
    ShardingOptions options = recomputing({.wrap = wrap});
    options.activation_checkpointing_cls = std::move(classes);
    options.activation_checkpointing_every = every;
    std::vector<std::string> names;
    for (const auto& module : choose_recomputed(net, choose_units(net, wrap), options))
      names.push_back(module.name);
    return names;
  };
  using Names = std::vector<std::string>;
  const WrapPolicy blocks = WrapPolicy::transformer({"ToyBlock", "SharedPair"});
  EXPECT_EQ(chosen(blocks, {}, 1), (Names{"twice", "frozen", "half", "pair"}));
  EXPECT_EQ(chosen(blocks, {}, 2), (Names{"twice", "half"}));
  EXPECT_EQ(chosen(WrapPolicy::none(), {"Linear", "SharedPair"}, 1).front(), "twice.attention.qkv");
  EXPECT_EQ(chosen(WrapPolicy::none(), {"Linear", "SharedPair"}, 1).back(), "pair");
  EXPECT_EQ(chosen(WrapPolicy::none(), {"Linear", "SharedPair"}, 1).size(), 3 * 4 + 1u);
}

TEST(ActivationCheckpointing, UnsupportedChoicesAreRefusedByName) {
  const auto refusal = [](const ShardingOptions& options) {
    return message_of<Error>(
        [&] { testing::on_ranks(1, options, [](Context&, auto&, ShardedModel&) {}); });
  };
  ShardingOptions options = recomputing(toy_options(Strategy::full_shard));
  options.activation_checkpointing_cls = {"ToyBlok"};
  EXPECT_NE(refusal(options).find("no module of class ToyBlok"), std::string::npos);
  options.activation_checkpointing_cls = {"ToyTransformer"};
  EXPECT_NE(refusal(options).find("is the whole model"), std::string::npos);
  options = recomputing({});
  EXPECT_NE(refusal(options).find("no unit except the root"), std::string::npos);
  options = recomputing(toy_options(Strategy::full_shard));
  options.activation_checkpointing_every = 0;
  EXPECT_NE(refusal(options).find("is not a positive number"), std::string::npos);
  options = toy_options(Strategy::full_shard);
  options.activation_checkpointing_every = 2;
  EXPECT_NE(refusal(options).find("requires activation_checkpointing"), std::string::npos);
}

// One part is computed in a product of the enclosing module, and the other is called there.
class FusedPairImpl : public nn::Module {
 public:
  FusedPairImpl() {
    inner_ = register_module("inner", nn::Linear(testing::toy_width, testing::toy_width));
    dropout_ = register_module("dropout", nn::Dropout(0.1));
  }
  Tensor forward(const Tensor& x) const {
    return dropout_(linear(x, inner_->weight(), inner_->bias()));
  }
  [[nodiscard]] bool is_indivisible() const override { return true; }

 private:
  nn::Linear inner_;
  nn::Dropout dropout_;
};
TESSERA_MODULE(FusedPair);

class EmptyListImpl : public nn::Module {};
TESSERA_MODULE(EmptyList);

class FusedNet : public nn::Module {
 public:
  FusedNet() {
    std::vector<FusedPair> pairs;
    for (int i = 0; i < 2; ++i) pairs.emplace_back(std::make_shared<FusedPairImpl>());
    register_module("pairs", nn::ModuleList<FusedPair>(std::move(pairs)));
    register_module("spare", EmptyList(std::make_shared<EmptyListImpl>()));
  }
};

TEST(ActivationCheckpointing, ClassesThatAreNotCalledAreRefusedWithTheOneToUse) {
  FusedNet net;
  const auto choose = [&](std::vector<std::string> classes) {
    ShardingOptions options = recomputing({});
    options.activation_checkpointing_cls = std::move(classes);
    return choose_recomputed(net, choose_units(net, {}), options);
  };
  const auto refusal = [&](const std::string& name) {
    return message_of<Error>([&] { (void)choose({name}); });
  };
  EXPECT_EQ(refusal("Linear"),
            "activation_checkpointing_cls: Linear (pairs.0.inner) is not called: a module around "
            "it uses its parameters in a fused operation; name FusedPair instead");
  EXPECT_EQ(refusal("ModuleList"),
            "activation_checkpointing_cls: ModuleList (pairs) has no forward that would be called; "
            "name FusedPair instead");
  EXPECT_EQ(refusal("EmptyList"),
            "activation_checkpointing_cls: EmptyList (spare) has no forward that would be called; "
            "leave it out");
  EXPECT_EQ(choose({"Dropout"}).front().name, "pairs.0.dropout");
  // A module inside a recomputed one is recomputed with it.
  EXPECT_EQ(choose({"Linear", "FusedPair"}).front().name, "pairs.0");
}

TEST(ActivationCheckpointing, EndsWithTheShardedModelAndKeepsTheUsersChoice) {
  launch(1, [](Context& context) {
    const testing::OneThread one_thread;
    testing::ToyTransformer net;
    const auto modules = net.named_modules();
    const auto recomputed = [&] {
      std::vector<std::string> names;
      for (const auto& [name, module] : modules) {
        if (module->recompute_options()) names.push_back(name);
      }
      return names;
    };
    const auto block = std::find_if(modules.begin(), modules.end(),
                                    [](const auto& entry) { return entry.first == "blocks.1"; });
    block->second->set_recompute(RecomputeOptions{.keep = {Op::linear}});
    {
      const ShardedModel model =
          fully_shard(net, context, recomputing(toy_options(Strategy::full_shard)));
      EXPECT_EQ(recomputed(), (std::vector<std::string>{"blocks.0", "blocks.1", "blocks.2"}));
      EXPECT_TRUE(block->second->recompute_options()->keep.contains(Op::linear));
    }
    EXPECT_EQ(recomputed(), (std::vector<std::string>{"blocks.1"}));
  });
}

// A pass that ends in the middle of a second run leaves the model usable.
TEST(ActivationCheckpointing, AnExceptionInTheSecondRunLeavesTheModelUsable) {
  const ShardingOptions options = recomputing(toy_options(Strategy::full_shard));
  std::mutex mutex;
  std::vector<double> losses[2];
  for (const bool broken : {false, true}) {
    testing::on_ranks(2, options, [&](Context& context, auto& net, ShardedModel& model) {
      optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
      const auto batch = testing::toy_batch(context.rank(), 2);
      if (broken) {
        int runs = 0;
        const Tensor x = net.embed(batch.ids);
        const Tensor y = recompute(
            [&](const Tensor& in) {
              Tensor out = net.head(in);
              if (runs++ == 1) throw std::runtime_error("stop");
              return out;
            },
            x);
        EXPECT_THROW(sum(y).backward(), std::runtime_error);
        optimizer.zero_grad();
      }
      for (int step = 0; step < 3; ++step) {
        const Tensor loss = net.loss(batch.ids, batch.targets);
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        const std::lock_guard lock(mutex);
        if (context.is_main()) losses[broken ? 1 : 0].push_back(loss.item());
      }
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

}  // namespace
}  // namespace tessera

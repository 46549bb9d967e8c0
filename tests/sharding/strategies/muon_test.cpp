// Muon under sharding: the bits of NO_SHARD on every world, those of the module alone on one rank,
// and what is refused.
#include "engine/optim/muon.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "sharding/sharding_testing.h"
#include "sharding/strategies/strategy_bits.h"

namespace tessera {
namespace {

using Values = std::map<std::string, std::vector<double>>;

optim::MuonOptions muon(DType products) {
  return {.lr = 0.02,
          .adjust_lr = optim::MuonRate::match_rms_adamw,
          .products = products,
          .matrices = [](const nn::NamedParameter& one) { return one.name != "tokens.weight"; },
          .decay = optim::decay_matrices};
}

// With parameters in segments of their own, which change no bit.
ShardingOptions apart(ShardingOptions options) {
  options.apart = optim::matrices_of(muon(bfloat16));
  return options;
}

Values trained(int world, const ShardingOptions& options, DType products) {
  testing::Collected collected;
  testing::on_ranks(world, options,
                    [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
                      optim::Muon optimizer(model.parameters(), muon(products));
                      for (int step = 0; step < 2; ++step) {
                        testing::train_once(context, net);
                        (void)model.clip_grad_norm(0.1);
                        optimizer.step();
                        optimizer.zero_grad();
                      }
                      collected.add(model);
                    });
  return collected.values();
}

TEST(ShardedMuon, HasTheSameBitsOnEveryWorld) {
  for (const int world : {1, 2, 3, 4}) {
    const DType products = world == 3 ? float32 : bfloat16;
    std::map<int, Values> expected;  // by order of summation
    for (const ShardingOptions& options : testing::all_strategies(world)) {
      const int order = testing::summation_group(options, world);
      if (!expected.contains(order)) {
        ShardingOptions plain = testing::toy_options(Strategy::no_shard);
        plain.reduction_group = order;
        expected[order] = trained(world, plain, products);
      }
      const std::string text = testing::describe(options) + " on " + std::to_string(world);
      EXPECT_EQ(trained(world, options, products), expected[order]) << text;
      if (world == 4) continue;
      EXPECT_EQ(trained(world, apart(options), products), expected[order]) << text << ", apart";
    }
  }
}

TEST(ShardedMuon, HasTheBitsOfTheModuleAlone) {
  Values alone;
  launch(1, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(3);
    testing::ToyTransformer net;
    optim::Muon optimizer(net.parameters(), muon(bfloat16));
    for (int step = 0; step < 2; ++step) {
      testing::train_once(context, net);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const nn::NamedParameter& one : net.parameters()) alone[one.name] = one.tensor.to_vector();
  });
  testing::Collected collected;
  testing::on_ranks(1, testing::toy_options(Strategy::full_shard),
                    [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
                      optim::Muon optimizer(model.parameters(), muon(bfloat16));
                      for (int step = 0; step < 2; ++step) {
                        testing::train_once(context, net);
                        optimizer.step();
                        optimizer.zero_grad();
                      }
                      collected.add(model);
                    });
  EXPECT_EQ(collected.values(), alone);
}

// A frozen matrix has no place among the rounds, and comes back with its momentum.
TEST(ShardedMuon, FreezesMatricesForAWhile) {
  const auto run = [](const ShardingOptions& options) {
    testing::Collected collected;
    testing::on_ranks(2, options,
                      [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
                        optim::Muon optimizer(model.parameters(), muon(bfloat16));
                        for (int step = 0; step < 3; ++step) {
                          for (const nn::NamedParameter& one : model.parameters()) {
                            if (one.name != "blocks.1.in.weight") continue;
                            Tensor(one.tensor).set_requires_grad(step != 1);
                          }
                          testing::train_once(context, net);
                          optimizer.step();
                          optimizer.zero_grad();
                        }
                        collected.add(model);
                      });
    return collected.values();
  };
  const Values expected = run(testing::toy_options(Strategy::no_shard));
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_grad_op}) {
    EXPECT_EQ(run(testing::toy_options(strategy)), expected) << name_of(strategy);
  }
}

TEST(ShardedMuon, RefusesStateInFiles) {
  for (const bool all : {false, true}) {
    ShardingOptions options = testing::toy_options(Strategy::full_shard);
    options.offload.folder = ::testing::TempDir();
    (all ? options.offload.gradients : options.offload.optimizer) = Placement::file;
    testing::on_ranks(1, options, [](Context&, testing::ToyTransformer&, ShardedModel& model) {
      EXPECT_THROW(optim::Muon(model.parameters(), {}), Error);
    });
  }
}

}  // namespace
}  // namespace tessera

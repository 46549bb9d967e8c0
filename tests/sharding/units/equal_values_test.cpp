// Ranks that start with different values are named, or start with rank 0's.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

void with_seeds(int ranks, bool deferred,
                const std::function<void(Context&, ToyTransformer&)>& body) {
  launch(ranks, [&](Context& context) {
    manual_seed(static_cast<std::uint64_t>(context.rank()) + 40);
    const DeviceGuard device(deferred ? Device::meta() : Device::cpu());
    ToyTransformer net;
    body(context, net);
  });
}

TEST(EqualValues, DifferentValuesAreNamed) {
  for (const ShardingOptions& options : all_strategies(2)) {
    for (const bool deferred : {false, true}) {
      with_seeds(2, deferred, [&](Context& context, ToyTransformer& net) {
        const std::string message =
            message_of<Error>([&] { const auto model = fully_shard(net, context, options); });
        EXPECT_EQ(
            message,
            "ranks 0 and 1 begin with different values of positions, and would train a mix of "
            "two models: make the module with the same seed on every rank (ts::manual_seed), "
            "or take rank 0's values with ShardingOptions::sync_module_states");
      });
    }
  }
}

// The seeds are the same; the message says what is not.
TEST(EqualValues, AModuleOnMetaOnOneRankIsNamed) {
  launch(3, [](Context& context) {
    manual_seed(3);
    std::optional<DeviceGuard> meta;
    if (context.rank() != 1) meta.emplace(Device::meta());
    ToyTransformer net;
    meta.reset();
    EXPECT_EQ(
        message_of<Error>([&] { const auto model = fully_shard(net, context); }),
        "ranks 0 and 1 begin with different values of positions: on rank 0 it is on `meta` "
        "and was made as parameter number 2, on rank 1 it has values in memory. Make the module "
        "in the same way on every rank, or take rank 0's values with "
        "ShardingOptions::sync_module_states");
  });
}

// Another module before it moves what its parameters are drawn from.
TEST(EqualValues, AModuleThatWasMadeLaterIsNamed) {
  launch(2, [](Context& context) {
    manual_seed(3);
    const DeviceGuard meta(Device::meta());
    if (context.rank() == 1) (void)nn::Linear(2, 2);
    ToyTransformer net;
    const std::string message =
        message_of<Error>([&] { const auto model = fully_shard(net, context); });
    EXPECT_NE(message.find("on rank 0 it is on `meta` and was made as parameter number 2, on rank "
                           "1 it is on `meta` and was made as parameter number 4"),
              std::string::npos)
        << message;
  });
}

TEST(EqualValues, OneElementIsEnough) {
  launch(3, [](Context& context) {
    manual_seed(3);
    ToyTransformer net;
    if (context.rank() == 2) {
      Tensor last = net.named_parameters().back().tensor;
      last.data_as<float>()[1] += 1e-6f;
    }
    const std::string message = message_of<Error>(
        [&] { const auto model = fully_shard(net, context, toy_options(Strategy::no_shard)); });
    EXPECT_EQ(message.find("ranks 0 and 2 begin with different values of norm.bias"), 0) << message;
  });
}

TEST(EqualValues, SyncModuleStatesTakesRankZeros) {
  std::map<std::string, std::vector<double>> expected;
  launch(1, [&](Context&) {
    manual_seed(40);
    const ToyTransformer net;
    for (const auto& parameter : net.named_parameters())
      expected[parameter.name] = parameter.tensor.to_vector();
  });
  for (ShardingOptions options : all_strategies(2)) {
    options.sync_module_states = true;
    for (const bool deferred : {false, true}) {
      Collected collected;
      with_seeds(2, deferred, [&](Context& context, ToyTransformer& net) {
        const ShardedModel model = fully_shard(net, context, options);
        collected.add(model);
        context.barrier();
      });
      EXPECT_EQ(collected.values(), expected) << testing::describe(options);
    }
  }
}

// Rank 0 has read a file; the other ranks have no memory for the values yet.
TEST(EqualValues, SyncFillsParametersWithoutMemory) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.sync_module_states = true;
  options.ignored_modules = {"norm"};
  Collected collected;
  std::map<std::string, std::vector<double>> expected;
  launch(3, [&](Context& context) {
    manual_seed(static_cast<std::uint64_t>(context.rank()));
    const DeviceGuard device(context.is_main() ? Device::cpu() : Device::meta());
    ToyTransformer net;
    if (context.is_main()) {
      for (auto& parameter : net.named_parameters()) {
        Tensor value = parameter.tensor;
        for (std::int64_t i = 0; i < value.elements(); ++i)
          value.data_as<float>()[i] = static_cast<float>(i) * 0.25f;
        expected[parameter.name] = value.to_vector();
      }
    }
    const DeviceGuard back(Device::cpu());
    const ShardedModel model = fully_shard(net, context, options);
    collected.add(model);
    context.barrier();
  });
  EXPECT_EQ(collected.values(), expected);
}

TEST(EqualValues, OptionsThatDecideCollectivesAreCompared) {
  const auto message_with = [](void (*change)(ShardingOptions&)) {
    std::string found;
    launch(2, [&](Context& context) {
      ToyTransformer net;
      ShardingOptions options = toy_options(Strategy::full_shard);
      if (!context.is_main()) change(options);
      const std::string message =
          message_of<Error>([&] { const auto model = fully_shard(net, context, options); });
      if (context.is_main()) found = message;
    });
    return found;
  };
  const std::string kept =
      message_with([](ShardingOptions& options) { options.keep_unsharded_memory = true; });
  EXPECT_NE(kept.find("keep_unsharded_memory true"), std::string::npos) << kept;
  const std::string synced =
      message_with([](ShardingOptions& options) { options.sync_module_states = true; });
  EXPECT_NE(synced.find("sync_module_states true"), std::string::npos) << synced;
}

}  // namespace
}  // namespace tessera::testing

// Every optimizer has the bits of NO_SHARD under every strategy, also with its state in files, and
// the state that the plan counts.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"
#include "sharding/strategies/optimizer_list.h"

namespace tessera {
namespace {

using testing::all_optimizers;
using testing::OptimizerOfList;

// The parameters after three clipped steps, of which the second has no gradient for one parameter.
std::map<std::string, std::vector<double>> trained_with(const OptimizerOfList& optimizer,
                                                        const ShardingOptions& options,
                                                        int world = 2) {
  testing::Collected collected;
  testing::on_ranks(world, optimizer.fit(options),
                    [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
                      const auto made = optimizer.make(model.parameters());
                      for (int step = 0; step < 3; ++step) {
                        testing::train_once(context, net);
                        (void)model.clip_grad_norm(1e-2);
                        if (step == 1) model.parameters()[2].tensor.zero_grad();
                        made->step();
                        made->zero_grad();
                      }
                      collected.add(model);
                    });
  return collected.values();
}

class EveryOptimizer : public ::testing::TestWithParam<OptimizerOfList> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, EveryOptimizer, ::testing::ValuesIn(all_optimizers()),
                         [](const auto& parameter) { return parameter.param.name; });

class OptimizerInFiles : public ::testing::TestWithParam<OptimizerOfList> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerInFiles,
                         ::testing::ValuesIn(testing::optimizers_in_files()),
                         [](const auto& parameter) { return parameter.param.name; });

TEST_P(EveryOptimizer, HasTheSameBitsUnderEveryStrategy) {
  for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
    ShardingOptions plain = testing::toy_options(Strategy::no_shard);
    plain.param_dtype = dtype;
    const auto expected = trained_with(GetParam(), plain);
    for (ShardingOptions options : testing::all_strategies(2)) {
      options.param_dtype = dtype;
      EXPECT_EQ(trained_with(GetParam(), options), expected) << testing::describe(options);
    }
  }
}

// Pieces of two blocks, so that the toy's shards need several.
TEST_P(OptimizerInFiles, HasTheSameBits) {
  for (const Strategy strategy : {Strategy::full_shard, Strategy::shard_optimizer}) {
    ShardingOptions options = testing::toy_options(strategy);
    const auto expected = trained_with(GetParam(), options);
    options.offload.optimizer = Placement::file;
    options.offload.folder = ::testing::TempDir();
    options.offload.piece_bytes = 8192;
    EXPECT_EQ(trained_with(GetParam(), options), expected) << testing::describe(options);
    options.offload.parameters = options.offload.gradients = Placement::file;
    EXPECT_EQ(trained_with(GetParam(), options), expected) << testing::describe(options);
  }
}

// A plan's bytes of state are those of the ranks.
TEST_P(EveryOptimizer, HasTheStateOfThePlan) {
  const ShardingOptions options = GetParam().fit(testing::toy_options(Strategy::full_shard));
  std::size_t measured = 0, states = 0;
  testing::on_ranks(
      2, options, [&](Context& context, testing::ToyTransformer& net, ShardedModel& model) {
        const auto made = GetParam().make(model.parameters());
        for (int step = 0; step < 2; ++step) {
          testing::train_once(context, net);
          made->step();
          made->zero_grad();
        }
        if (!context.is_main()) return;
        measured = measure_memory(context).use[MemoryKind::optimizer];
        for (const optim::Segment& segment : made->segments()) {
          const std::size_t first = segment.parameters.front();
          for (std::size_t i = 0; i < made->state_names_of(first).size(); ++i) {
            const optim::StateFormat format = made->state_format(first, i);
            std::int64_t elements = format.elements_for(segment.count);
            if (format.whole) {
              elements = 0;
              for (const std::size_t one : segment.parameters)
                elements += made->state_format(one, i).whole->elements();
            }
            states +=
                static_cast<std::size_t>(elements) * size_of(format.dtype.value_or(segment.dtype));
          }
        }
        EXPECT_EQ(made->state_bytes(), states);
      });
  const DeviceGuard deferred(Device::meta());
  testing::ToyTransformer net;
  const MemoryPlan planned =
      plan(net, {.ranks = 2},
           {.sharding = options,
            .loss =
                [&net](Device device) {
                  const auto batch = testing::toy_batch(0, 2);
                  return net.loss(batch.ids.to(device), batch.targets.to(device));
                },
            .optimizer = GetParam().make});
  EXPECT_EQ(planned.memory.use[MemoryKind::optimizer], measured);
  EXPECT_GE(measured, states);
}

}  // namespace
}  // namespace tessera

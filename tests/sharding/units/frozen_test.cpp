// Partly frozen units: the trainable part is sharded over all ranks; the frozen part is neither
// widened, nor copied, nor sent again after a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"
#include "sharding/units/mixed_module.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::freeze;
using testing::MixedAndFrozen;
using testing::same_bits;
using testing::TrainingCase;
using testing::Trajectory;

// 7680 of 1,655,040 elements are trainable: 0.46 %. They divide into 1, 2, 3, 5 and 8 shards of
// whole granules.
constexpr std::int64_t adapter_width = 1280;
constexpr std::int64_t adapter_rank = 6;
constexpr std::size_t adapter_elements = adapter_width * adapter_rank;

class LowRankImpl : public nn::Module {
 public:
  LowRankImpl() {
    const nn::LinearOptions no_bias{.bias = false};
    base_ = register_module("base", nn::Linear(adapter_width, adapter_width));
    down_ = register_module("down", nn::Linear(adapter_width, adapter_rank, no_bias));
    up_ = register_module("up", nn::Linear(adapter_rank, adapter_width, no_bias));
    freeze(*base_);
    freeze(*up_);
  }
  Tensor forward(const Tensor& x) const { return base_(x) + up_(down_(x)); }

 private:
  nn::Linear base_, down_, up_;
};
TESSERA_MODULE(LowRank);

// The root is completely frozen.
class MostlyFrozen : public nn::Module {
 public:
  explicit MostlyFrozen(double = 0) {
    tokens_ = register_module("tokens", nn::Embedding(testing::toy_vocabulary, adapter_width, 0.3));
    freeze(*tokens_);
    block_ = register_module("block", LowRank(std::make_shared<LowRankImpl>()));
  }
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const {
    return cross_entropy(linear(block_(tokens_(ids)), tokens_->weight()), targets);
  }

 private:
  nn::Embedding tokens_;
  LowRank block_;
};

ShardingOptions by_units(ShardingOptions options) {
  options.wrap = WrapPolicy::list({"block"});
  return options;
}

// One step; with a learning rate of 0 it marks the storages as changed and changes no value.
template <class Net>
double step_of(const Context& context, Net& net, optim::Optimizer& optimizer) {
  const auto batch = testing::toy_batch(context.rank(), 1);
  const Tensor loss = net.loss(batch.ids, batch.targets);
  loss.backward();
  optimizer.step();
  optimizer.zero_grad();
  return loss.item();
}

// To the byte, on every rank.
TEST(FrozenUnits, ShardTheTrainablePartOverAllRanks) {
  for (const int world : {1, 2, 3, 5, 8}) {
    launch(world, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(7);
      MostlyFrozen net;
      ShardedModel model =
          fully_shard(net, context, by_units(testing::toy_options(Strategy::full_shard)));
      optim::AdamW optimizer(model.parameters(), {});
      step_of(context, net, optimizer);
      const std::size_t share = adapter_elements / static_cast<std::size_t>(world);
      for (const auto& [name, tensor, shape] : model.parameters()) {
        if (name != "block.down.weight") continue;
        EXPECT_EQ(static_cast<std::size_t>(tensor.elements()), share) << world;
      }
      // Sums are held in multiples of 128 elements.
      EXPECT_EQ(model.held_bytes().gradients, 4 * testing::round_up<std::size_t>(share, 128));
      EXPECT_EQ(optimizer.state_bytes(), 2 * 4 * share) << world;
    });
  }
}

TEST(FrozenUnits, EveryStrategyGivesTheBitsOfNoShard) {
  const auto make = [](double dropout) { return std::make_unique<MixedAndFrozen>(dropout); };
  const TrainingCase what{.micro_batches = 2, .max_norm = 0.1, .steps = 2};
  for (const int world : {1, 2, 3, 5, 8}) {
    for (const std::optional<DType> param_dtype : {std::optional<DType>{}, {bfloat16}}) {
      Trajectory expected;
      for (ShardingOptions options : all_strategies(world)) {
        options.wrap = WrapPolicy::list({"mixed", "fixed"});
        options.param_dtype = param_dtype;
        const Trajectory got = testing::train_ranks(world, options, what, make);
        if (options.strategy == Strategy::no_shard) expected = got;
        EXPECT_TRUE(same_bits(expected, got)) << testing::describe(options) << " on " << world;
      }
      EXPECT_NE(expected.losses.front().front(), expected.losses.front().back());
    }
  }
}

// The bytes that reach a rank in a step: the trainable part for computing, and its gradients. Where
// units share one buffer in turn, all parameters must be gathered again.
TEST(FrozenUnits, AreGatheredOnceWhereTheyHaveMemoryOfTheirOwn) {
  constexpr int world = 2;
  for (const ShardingOptions& options : all_strategies(world)) {
    if (options.group_size == 1 || options.strategy == Strategy::no_shard) continue;
    launch(world, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(7);
      MostlyFrozen net;
      ShardedModel model = fully_shard(net, context, by_units(options));
      optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
      CommunicationStatistics before;
      for (int step = 0; step < 3; ++step) {
        before = model.communication();
        step_of(context, net, optimizer);
      }
      const CommunicationStatistics after = model.communication();
      const std::uint64_t trainable = 4 * adapter_elements / world;
      const std::uint64_t frozen =
          4 * (adapter_width * adapter_width + adapter_width + adapter_elements) / world;
      const bool takes_turns = row_of(options.strategy).gathered == Gathered::per_pass;
      EXPECT_EQ(after.bytes - before.bytes, 2 * trainable + (takes_turns ? frozen : 0))
          << testing::describe(options);
      EXPECT_EQ(after.collectives - before.collectives, 2u) << testing::describe(options);
    });
  }
}

// Values that were changed without notifying the storage are not detected; values that were written
// properly are.
TEST(FrozenUnits, AreCastOnceUntilTheyAreWritten) {
  ShardingOptions cast_only = testing::toy_options(Strategy::no_shard);
  cast_only.param_dtype = bfloat16;
  for (const ShardingOptions& options : {cast_only, testing::toy_options(Strategy::shard_optimizer),
                                         testing::toy_options(Strategy::shard_grad_op)}) {
    launch(2, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(7);
      MostlyFrozen net;
      ShardedModel model = fully_shard(net, context, by_units(options));
      optim::Sgd optimizer(model.parameters(), {.lr = 0});
      const double loss = step_of(context, net, optimizer);
      for (const auto& parameter : model.parameters()) {
        if (parameter.tensor.requires_grad()) continue;
        std::fill_n(parameter.tensor.raw_data(), parameter.tensor.bytes(),
                    std::byte{0});  // undetected
      }
      context.barrier();
      EXPECT_EQ(step_of(context, net, optimizer), loss) << testing::describe(options);
      for (auto& parameter : model.parameters()) {
        if (parameter.tensor.requires_grad()) continue;
        Tensor(parameter.tensor).copy_from(Tensor::full(parameter.tensor.shape(), 0.25));
      }
      EXPECT_NE(step_of(context, net, optimizer), loss) << testing::describe(options);
    });
  }
}

// No second copy, and nothing to gather.
TEST(FrozenUnits, ComputeOnTheMastersWhereThereIsNothingToCast) {
  launch(2, [](Context& context) {
    const testing::OneThread one_thread;
    MostlyFrozen net;
    ShardedModel model =
        fully_shard(net, context, by_units(testing::toy_options(Strategy::no_shard)));
    const auto local = model.parameters();
    const auto views = net.named_parameters();
    ASSERT_EQ(views.size(), local.size());
    for (const auto& view : views) {
      for (const auto& master : local) {
        if (master.name == view.name) {
          ASSERT_TRUE(view.tensor.storage()->present()) << view.name;
          EXPECT_EQ(view.tensor.data(), master.tensor.data()) << view.name;
        }
      }
    }
  });
}

// bf16 values that are never updated need no fp32 copy. A wider frozen parameter keeps its values,
// whatever the compute dtype.
TEST(FrozenUnits, KeepTheDTypeTheyWereMadeIn) {
  for (const std::optional<DType> param_dtype : {std::optional<DType>{}, {bfloat16}}) {
    launch(2, [&](Context& context) {
      MixedAndFrozen net;
      ShardingOptions options = testing::toy_options(Strategy::full_shard);
      options.wrap = WrapPolicy::list({"mixed", "fixed"});
      options.param_dtype = param_dtype;
      std::size_t expected = 0;
      for (const auto& unit : testing::expected_units(net, options.wrap, param_dtype)) {
        const UnitLayout layout = unit.layout(2);
        for (const auto& segment : layout.segments()) {
          expected +=
              static_cast<std::size_t>(segment.elements) / 2 * size_of(segment.master_dtype);
        }
      }
      const ShardedModel model = fully_shard(net, context, options);
      for (const auto& [name, tensor, shape] : model.parameters()) {
        const bool narrow = name.find("narrow") != std::string::npos;
        EXPECT_EQ(tensor.dtype(), narrow && !tensor.requires_grad() ? bfloat16 : float32) << name;
      }
      EXPECT_EQ(model.held_bytes().parameters, expected);
    });
  }
}

}  // namespace
}  // namespace tessera

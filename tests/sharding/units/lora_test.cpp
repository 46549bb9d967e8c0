// Adapters with sharding: the trained part is cut into equal shards to the byte, the frozen part is
// not sent again after a step, and every strategy gives the same bits.
#include "engine/nn/lora.h"

#include <gtest/gtest.h>

#include <optional>

#include "sharding/memory/layouts.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

// 15360 of 3,284,480 elements of a block are trained: they divide into 1, 2, 3, 5 and 8 shards.
constexpr std::int64_t lora_test_width = 1280;
constexpr std::int64_t lora_test_rank = 6;
constexpr std::size_t lora_trained = 2 * lora_test_width * lora_test_rank;

class AdaptedBlockImpl : public nn::Module {
 public:
  explicit AdaptedBlockImpl(std::int64_t width) {
    q_proj_ = register_module("q_proj", nn::Linear(width, width));
    out_ = register_module("out", nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) const { return x + out_(relu(q_proj_(x))); }

 private:
  nn::Linear q_proj_, out_;
};
TESSERA_MODULE(AdaptedBlock);

class AdaptedNet : public nn::Module {
 public:
  explicit AdaptedNet(std::int64_t width, double dropout, std::optional<DType> storage,
                      bool dora = false) {
    tokens_ = register_module("tokens", nn::Embedding(testing::toy_vocabulary, width, 0.3));
    first_ = register_module("first", AdaptedBlock(width));
    second_ = register_module("second", AdaptedBlock(width));
    freeze(*this, storage);
    add_lora(
        *this,
        {.rank = lora_test_rank, .dropout = dropout, .dora = dora, .target_modules = {"q_proj"}});
  }
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const {
    return cross_entropy(linear(second_(first_(tokens_(ids))), tokens_->weight()), targets);
  }

 private:
  nn::Embedding tokens_;
  AdaptedBlock first_, second_;
};

ShardingOptions of_blocks(ShardingOptions options) {
  options.wrap = WrapPolicy::list({"first", "second"});
  return options;
}

void one_step(const Context& context, const AdaptedNet& net, optim::Optimizer& optimizer) {
  const auto batch = testing::toy_batch(context.rank(), 1);
  net.loss(batch.ids, batch.targets).backward();
  optimizer.step();
  optimizer.zero_grad();
}

// Two blocks: fp32 masters, sums and moments of the adapters, and only the parameters themselves of
// the rest.
TEST(AdaptedUnits, HoldOneShardOfTheTrainedPartToTheByte) {
  for (const int world : {1, 2, 3, 5, 8}) {
    launch(world, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(7);
      AdaptedNet net(lora_test_width, 0, bfloat16);
      ShardingOptions options = of_blocks(testing::toy_options(Strategy::full_shard));
      options.param_dtype = bfloat16;
      ShardedModel model = fully_shard(net, context, options);
      optim::AdamW optimizer(model.parameters(), {});
      one_step(context, net, optimizer);
      const std::size_t share = 2 * lora_trained / static_cast<std::size_t>(world);
      EXPECT_EQ(optimizer.state_bytes(), 2 * 4 * share) << world;
      EXPECT_EQ(model.held_bytes().gradients, 4 * share) << world;
      std::size_t trained = 0;
      for (const auto& [name, tensor, shape] : model.parameters()) {
        if (tensor.requires_grad()) {
          EXPECT_EQ(tensor.dtype(), float32);
          trained += static_cast<std::size_t>(tensor.elements());
        } else {
          EXPECT_EQ(tensor.dtype(), bfloat16) << name;
        }
      }
      EXPECT_EQ(trained, share) << world;
    });
  }
}

TEST(AdaptedUnits, FrozenPartsAreNotGatheredBecauseAdaptersStepped) {
  constexpr int world = 2;
  for (const ShardingOptions& options : testing::all_strategies(world)) {
    if (options.group_size == 1 || options.strategy == Strategy::no_shard) continue;
    if (row_of(options.strategy).gathered == Gathered::per_pass) continue;
    launch(world, [&](Context& context) {
      const testing::OneThread one_thread;
      manual_seed(7);
      AdaptedNet net(lora_test_width, 0, std::nullopt);
      ShardedModel model = fully_shard(net, context, of_blocks(options));
      optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
      CommunicationStatistics before;
      for (int step = 0; step < 3; ++step) {
        before = model.communication();
        one_step(context, net, optimizer);
      }
      // The adapters for computing, and their gradients.
      const std::uint64_t adapters = 4 * 2 * lora_trained / world;
      EXPECT_EQ(model.communication().bytes - before.bytes, 2 * adapters)
          << testing::describe(options);
    });
  }
}

void expect_same_bits(bool dora) {
  const testing::TrainingCase what{.dropout = 0.3, .micro_batches = 2, .max_norm = 0.1, .steps = 2};
  for (const int world : {1, 2, 3, 4}) {
    for (const std::optional<DType> low : {std::optional<DType>{}, {bfloat16}}) {
      const auto make = [&](double dropout) {
        return std::make_unique<AdaptedNet>(24, dropout, low, dora);
      };
      testing::Trajectory expected;
      for (ShardingOptions options : testing::all_strategies(world)) {
        options = of_blocks(options);
        options.param_dtype = low;
        const testing::Trajectory got = testing::train_ranks(world, options, what, make);
        if (options.strategy == Strategy::no_shard) expected = got;
        EXPECT_TRUE(testing::same_bits(expected, got))
            << testing::describe(options) << " on " << world;
      }
      EXPECT_NE(expected.losses.front().front(), expected.losses.front().back());
    }
  }
}

TEST(AdaptedUnits, EveryStrategyGivesTheSameBits) {
  expect_same_bits(false);
}
TEST(AdaptedUnits, EveryStrategyGivesTheSameBitsWithDora) {
  expect_same_bits(true);
}

}  // namespace
}  // namespace tessera

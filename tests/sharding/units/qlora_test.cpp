// Frozen weights as codes with sharding: a rank holds its share of the bytes, gathers them once,
// and every strategy and world gives the same bits.
#include <gtest/gtest.h>

#include "engine/nn/lora.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

constexpr std::int64_t qlora_width = 256;
constexpr std::int64_t qlora_rank = 4;

class CodedBlockImpl : public nn::Module {
 public:
  explicit CodedBlockImpl(std::int64_t width) {
    q_proj_ = register_module("q_proj", nn::Linear(width, width));
    out_ = register_module("out", nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) const { return x + out_(relu(q_proj_(x))); }

 private:
  nn::Linear q_proj_, out_;
};
TESSERA_MODULE(CodedBlock);

class CodedNet : public nn::Module {
 public:
  CodedNet(std::int64_t width, double dropout, std::optional<DType> storage,
           std::optional<QuantizedFormat> format) {
    tokens_ = register_module("tokens", nn::Embedding(testing::toy_vocabulary, width, 0.3));
    first_ = register_module("first", CodedBlock(width));
    second_ = register_module("second", CodedBlock(width));
    freeze(*this, storage);
    add_lora(*this, {.rank = qlora_rank, .dropout = dropout, .target_modules = {"q_proj"}});
    if (format) quantize_frozen(*this, *format);
  }
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets) const {
    return cross_entropy(linear(second_(first_(tokens_(ids))), tokens_->weight()), targets);
  }

 private:
  nn::Embedding tokens_;
  CodedBlock first_, second_;
};

ShardingOptions of_coded_blocks(ShardingOptions options) {
  options.wrap = WrapPolicy::list({"first", "second"});
  return options;
}

// The codes of a unit's two matrices, in shares of multiples of 256 bytes.
std::size_t share_of_codes(QuantizedFormat format, std::size_t world) {
  const auto matrix = static_cast<std::size_t>(quantized_bytes(format, qlora_width, qlora_width));
  const std::size_t both = (matrix + 31) / 32 * 32 + matrix;
  const std::size_t granule = 256 * world;
  return (both + granule - 1) / granule * granule / world;
}

TEST(QuantizedUnits, HoldTheirShareOfTheCodesToTheByte) {
  for (const QuantizedFormat format : {QuantizedFormat::nf4, QuantizedFormat::int8}) {
    for (const int world : {1, 2, 3, 5}) {
      launch(world, [&](Context& context) {
        const testing::OneThread one_thread;
        const auto held = [&](std::optional<QuantizedFormat> base) {
          manual_seed(7);
          CodedNet net(qlora_width, 0, bfloat16, base);
          ShardingOptions options = of_coded_blocks(testing::toy_options(Strategy::full_shard));
          options.param_dtype = bfloat16;
          const ShardedModel model = fully_shard(net, context, options);
          return model.held_bytes().parameters;
        };
        // The biases stay beside the adapters' factors; two units have two matrices each.
        const std::size_t matrices =
            2 * (2 * 2 * qlora_width * qlora_width) / static_cast<std::size_t>(world);
        const std::size_t codes = 2 * share_of_codes(format, static_cast<std::size_t>(world));
        const auto saved =
            static_cast<double>(held(std::nullopt)) - static_cast<double>(held(format));
        const auto wanted = static_cast<double>(matrices) - static_cast<double>(codes);
        // Segments of fewer elements have other ends: at most 256 bytes each.
        EXPECT_NEAR(saved, wanted, 2 * 256) << world;
      });
    }
  }
}

TEST(QuantizedUnits, CodesAreNotGatheredBecauseAdaptersStepped) {
  launch(2, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(7);
    CodedNet net(qlora_width, 0, std::nullopt, QuantizedFormat::nf4);
    ShardedModel model =
        fully_shard(net, context, of_coded_blocks(testing::toy_options(Strategy::shard_grad_op)));
    optim::Sgd optimizer(model.parameters(), {.lr = 1e-3});
    CommunicationStatistics before;
    for (int step = 0; step < 3; ++step) {
      before = model.communication();
      const auto batch = testing::toy_batch(context.rank(), 1);
      net.loss(batch.ids, batch.targets).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    // The adapters for computing, and their gradients; of each a rank gets the other's half.
    const std::uint64_t adapters = 4 * 2 * 2 * qlora_width * qlora_rank / 2;
    EXPECT_EQ(model.communication().bytes - before.bytes, 2 * adapters);
  });
}

TEST(QuantizedUnits, EveryStrategyGivesTheSameBits) {
  const testing::TrainingCase what{.dropout = 0.3, .micro_batches = 2, .max_norm = 0.1, .steps = 2};
  for (const QuantizedFormat format : {QuantizedFormat::nf4, QuantizedFormat::int8}) {
    for (const int world : {1, 2, 3}) {
      for (const std::optional<DType> low : {std::optional<DType>{}, {bfloat16}}) {
        const auto make = [&](double dropout) {
          return std::make_unique<CodedNet>(32, dropout, low, format);
        };
        testing::Trajectory expected;
        for (ShardingOptions options : testing::all_strategies(world)) {
          options = of_coded_blocks(options);
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
}

}  // namespace
}  // namespace tessera

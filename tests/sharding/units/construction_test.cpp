// The cost of creating a sharded model, and what is refused then.
#include <gtest/gtest.h>

#include <ctime>

#include "base/error.h"
#include "engine/device/memory.h"
#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::message_of;

constexpr std::int64_t slim_width = 8;

class SlimBlockImpl : public nn::Module {
 public:
  SlimBlockImpl() {
    norm_ = register_module("norm", nn::LayerNorm(slim_width));
    in_ = register_module("in", nn::Linear(slim_width, slim_width));
    out_ = register_module("out", nn::Linear(slim_width, slim_width));
  }
  Tensor forward(const Tensor& x) const { return x + out_(relu(in_(norm_(x)))); }

 private:
  nn::LayerNorm norm_;
  nn::Linear in_, out_;
};
TESSERA_MODULE(SlimBlock);

class DeepNet : public nn::Module {
 public:
  explicit DeepNet(int layers) {
    std::vector<SlimBlock> blocks;
    for (int i = 0; i < layers; ++i) blocks.emplace_back(std::make_shared<SlimBlockImpl>());
    blocks_ = register_module("blocks", nn::ModuleList<SlimBlock>(std::move(blocks)));
  }
  Tensor forward(Tensor x) const {
    for (const SlimBlock& block : *blocks_) x = block(x);
    return mean(x);
  }

 private:
  nn::ModuleList<SlimBlock> blocks_;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Processor time from the start to the end of the first step, on two ranks.
double seconds_to_start(int layers) {
  const double begin = processor_seconds();
  launch(2, [&](Context& context) {
    const testing::OneThread one_thread;
    DeepNet net(layers);
    ShardedModel model =
        fully_shard(net, context, {.wrap = WrapPolicy::transformer({"SlimBlock"})});
    optim::AdamW optimizer(model.parameters(), {});
    net.forward(Tensor::full({2, slim_width}, 0.5)).backward();
    model.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  });
  return processor_seconds() - begin;
}

// Eight times the layers must cost about eight times as much, not 64 times. The test uses the
// shortest of several rounds because ranks poll and other programs use the caches.
TEST(Construction, TimeGrowsWithTheNumberOfLayers) {
  seconds_to_start(10);  // one-time work of the process
  double few = 1e9, many = 1e9;
  for (int round = 0; round < 12; ++round) {
    few = std::min(few, seconds_to_start(200));
    many = std::min(many, seconds_to_start(1600));
    if (many < 12 * few) break;
  }
  RecordProperty("ratio", std::to_string(many / few));
  EXPECT_LT(many / few, 16) << few << " s for 200 layers, " << many << " s for 1600";
}

// The originals are freed unit by unit when the masters replace them.
TEST(Construction, HoldsAtMostOneUnitTwice) {
  static constexpr int layers = 8;
  static constexpr std::int64_t width = 256;
  class WideNet : public nn::Module {
   public:
    WideNet() {
      for (int i = 0; i < layers; ++i)
        register_module("layer" + std::to_string(i), nn::Linear(width, width));
      // Gradients, which construction also allocates, would hide the effect.
      for (auto& parameter : named_parameters()) parameter.tensor.set_requires_grad(false);
    }
  };
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
    launch(1, [&](Context& context) {
      const auto& pool = MemoryPool::current();
      const std::size_t before = pool->stats().in_use;
      WideNet net;
      const std::size_t whole = pool->stats().in_use - before;
      pool->reset_peak();
      const ShardedModel model =
          fully_shard(net, context, {.strategy = strategy, .wrap = WrapPolicy::size(1)});
      const std::size_t peak = pool->stats().peak_in_use - before;
      EXPECT_LT(peak, whole + whole / layers + whole / layers / 2) << whole;
      EXPECT_LT(pool->stats().in_use - before, whole + whole / layers / 2);
    });
  }
}

std::string refusal_of(const ShardingOptions& options, DType parameters = float32) {
  return message_of<Error>([&] {
    launch(1, [&](Context& context) {
      const nn::ParameterDTypeGuard dtype(parameters);
      DeepNet net(1);
      fully_shard(net, context, options);
    });
  });
}

TEST(Construction, RefusesParametersThatAreNotFloats) {
  EXPECT_EQ(refusal_of({.param_dtype = int32}), "parameters and gradients cannot be int32");
  EXPECT_EQ(refusal_of({.reduce_dtype = uint8}), "parameters and gradients cannot be uint8");
}

std::string difference_of(const ShardingOptions& first, const ShardingOptions& second,
                          DType parameters_of_second = float32) {
  return message_of<Error>([&] {
    launch(2, [&](Context& context) {
      const nn::ParameterDTypeGuard dtype(context.is_main() ? float32 : parameters_of_second);
      DeepNet net(1);
      fully_shard(net, context, context.is_main() ? first : second);
    });
  });
}

// Options that decide the order or the kind of collectives, and the contents of masters, must be
// the same on all ranks; the error comes before any group of ranks is created, and before errors
// that follow from an option.
TEST(Construction, NamesTheOptionInWhichRanksDiffer) {
  const std::string common = "ranks 0 and 1 shard different modules or with different options: ";
  EXPECT_EQ(difference_of({}, {.forward_prefetch = false}),
            common +
                "rank 0 has \"forward_prefetch true, backward_prefetch pre\" where rank 1 has "
                "\"forward_prefetch false, backward_prefetch pre\"");
  EXPECT_EQ(difference_of({}, {.backward_prefetch = BackwardPrefetch::post}),
            common +
                "rank 0 has \"forward_prefetch true, backward_prefetch pre\" where rank 1 has "
                "\"forward_prefetch true, backward_prefetch post\"");
  EXPECT_EQ(difference_of({.param_dtype = bfloat16}, {.param_dtype = bfloat16}, float64),
            common +
                "rank 0 has \"the root unit: parameter blocks.0.norm.weight [8] bfloat16 of "
                "float32 masters\" where rank 1 has \"the root unit: parameter "
                "blocks.0.norm.weight [8] bfloat16 of float64 masters\"");
  EXPECT_EQ(difference_of({}, {.strategy = Strategy::hybrid_shard, .group_size = 3}),
            common +
                "rank 0 has \"strategy FULL_SHARD, group_size 0, reduction_group 0, reduced "
                "as their own\" where rank 1 has \"strategy HYBRID_SHARD, group_size 3, "
                "reduction_group 0, reduced as their own\"");
  EXPECT_EQ(difference_of({}, {.wrap = WrapPolicy::list({"blocks.0"})}).substr(0, common.size()),
            common);
  // The number of ranks per host may differ where no groups are formed.
  EXPECT_EQ(difference_of({.group_size = 3}, {.group_size = 1}), difference_of({}, {}));
}

}  // namespace
}  // namespace tessera

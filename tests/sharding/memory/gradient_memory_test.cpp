// Reduced gradients hold memory from their reduction to zero_grad; this changes no bit.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

constexpr std::int64_t broad_width = 2048;
constexpr std::int64_t broad_layers = 3;
constexpr int two_ranks = 2;
// Large enough for pages of their own.
constexpr std::size_t shard_bytes =
    4 * (std::size_t{broad_width} * broad_width + broad_width) / two_ranks;

class BroadLayerImpl : public nn::Module {
 public:
  explicit BroadLayerImpl(std::int64_t width) {
    linear_ = register_module("linear", nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) const { return x + gelu(linear_(x)); }

 private:
  nn::Linear linear_;
};
TESSERA_MODULE(BroadLayer);

class BroadModel : public nn::Module {
 public:
  BroadModel() {
    std::vector<BroadLayer> made;
    for (std::int64_t i = 0; i < broad_layers; ++i) made.emplace_back(broad_width);
    layers_ = register_module("layers", nn::ModuleList<BroadLayer>(std::move(made)));
  }
  Tensor loss(const Tensor& input) const {
    Tensor x = input;
    for (std::size_t i = 0; i < layers_->size(); ++i) x = (*layers_)[i](x);
    return mean(x * x);
  }

 private:
  nn::ModuleList<BroadLayer> layers_;
};

ShardingOptions by_layer(Strategy strategy) {
  return {.strategy = strategy, .wrap = WrapPolicy::transformer({"BroadLayer"})};
}

Tensor input_of(int rank) {
  return Tensor::full({4, broad_width}, 0.01 * (rank + 1), float32, Device::cpu());
}

std::size_t gradient_bytes() {
  return MemoryPool::current()->stats().use[MemoryKind::gradients];
}

std::vector<std::vector<double>> gradients_of(const ShardedModel& model) {
  std::vector<std::vector<double>> values;
  for (const auto& parameter : model.parameters()) {
    values.push_back(parameter.tensor.grad().to_vector());
  }
  return values;
}

TEST(GradientMemory, IsHeldFromTheReductionToZeroGrad) {
  launch(two_ranks, [](Context& context) {
    manual_seed(3);
    BroadModel net;
    ShardedModel model = fully_shard(net, context, by_layer(Strategy::full_shard));
    optim::AdamW optimizer(model.parameters(), {});
    EXPECT_EQ(gradient_bytes(), 0u);
    for (int step = 0; step < 2; ++step) {
      const Tensor loss = net.loss(input_of(context.rank()));
      EXPECT_EQ(gradient_bytes(), 0u) << "step " << step;
      loss.backward();
      EXPECT_EQ(gradient_bytes(), broad_layers * shard_bytes) << "step " << step;
      (void)net.loss(input_of(context.rank()));  // as in an accumulation, or an evaluation
      EXPECT_EQ(gradient_bytes(), broad_layers * shard_bytes) << "step " << step;
      optimizer.step();
      EXPECT_EQ(gradient_bytes(), broad_layers * shard_bytes) << "step " << step;
      optimizer.zero_grad();
      EXPECT_EQ(gradient_bytes(), 0u) << "step " << step;
    }
  });
}

// Restored memory is overwritten first; later gradients are added to it, and nothing else is.
TEST(GradientMemory, GivesTheSameGradientsEachTime) {
  for (const Strategy strategy :
       {Strategy::no_shard, Strategy::shard_grad_op, Strategy::full_shard}) {
    launch(two_ranks, [&](Context& context) {
      manual_seed(3);
      BroadModel net;
      ShardedModel model = fully_shard(net, context, by_layer(strategy));
      optim::AdamW optimizer(model.parameters(), {});
      const auto backward = [&] { net.loss(input_of(context.rank())).backward(); };
      backward();
      const auto first = gradients_of(model);
      optimizer.zero_grad();
      backward();
      EXPECT_EQ(gradients_of(model), first) << name_of(strategy);
      backward();
      auto twice = first;
      for (auto& values : twice) {
        for (double& value : values) value *= 2;
      }
      EXPECT_EQ(gradients_of(model), twice) << name_of(strategy);
    });
  }
}

// A forward's activations and the gradients reuse each other's pages.
TEST(GradientMemory, HoldsNoMoreThanItsPeak) {
  launch(two_ranks, [](Context& context) {
    manual_seed(3);
    BroadModel net;
    ShardedModel model = fully_shard(net, context, by_layer(Strategy::full_shard));
    optim::AdamW optimizer(model.parameters(), {});
    const Tensor input = Tensor::full({512, broad_width}, 0.01, float32, Device::cpu());
    MemoryStats settled;
    for (int step = 0; step < 4; ++step) {
      net.loss(input).backward();
      optimizer.step();
      optimizer.zero_grad();
      const MemoryStats stats = MemoryPool::current()->stats();
      if (step < 1) continue;
      if (step == 1) settled = stats;
      EXPECT_EQ(stats.system_allocations, settled.system_allocations) << "step " << step;
      // Except for blocks below smallest_discarded, and a little more.
      EXPECT_LE(stats.peak_held, stats.peak_in_use + stats.peak_in_use / 32 + smallest_discarded)
          << "step " << step;
    }
  });
}

}  // namespace
}  // namespace tessera

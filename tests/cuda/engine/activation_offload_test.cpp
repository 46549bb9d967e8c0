// Kept inputs of recomputation, on the host between forward and backward: the same bits, and the
// bytes that this saves.
#include "engine/activation_offload.h"

#include <optional>

#include "base/error.h"
#include "cuda/sharding/offload_testing.h"
#include "engine/recompute.h"
#include "sharding/plan/plan.h"

namespace tessera {
namespace {

using testing::toy_options;
using testing::ToyTransformer;
using testing::TrainingCase;

class ActivationsOnHost : public testing::OffloadOnDevice {};

ShardingOptions toy_recomputed(Strategy strategy, ActivationCheckpointing how, bool offload) {
  ShardingOptions options = toy_options(strategy);
  options.activation_checkpointing = how;
  options.activation_offload = offload;
  return options;
}

TEST_F(ActivationsOnHost, KeepEveryBit) {
  int turn = 0;
  for (TrainingCase what : testing::training_cases()) {
    what.device = Device::cuda();
    what.batch = 1;
    what.dropout = 0.1;
    what.steps = 2;
    const bool even = turn++ % 2 == 0;
    ShardingOptions options = toy_recomputed(
        even ? Strategy::full_shard : Strategy::no_shard,
        turn % 3 == 0 ? ActivationCheckpointing::selective : ActivationCheckpointing::full, false);
    const testing::Trajectory expected = testing::train_toy(2, options, what);
    options.activation_offload = true;
    EXPECT_TRUE(testing::same_bits(expected, testing::train_toy(2, options, what)))
        << testing::describe(options) << ", " << what.name;
  }
}

TEST_F(ActivationsOnHost, WorkTogetherWithOffloadedState) {
  ShardingOptions options =
      toy_recomputed(Strategy::full_shard, ActivationCheckpointing::full, true);
  testing::expect_offload_keeps_bits(2, options, {.micro_batches = 2, .max_norm = 1e-3},
                                     {testing::placements().front()});
}

constexpr std::int64_t deep_width = 64, deep_layers = 8, deep_rows = 128;
constexpr std::size_t deep_input_bytes = std::size_t{deep_width} * deep_rows * 4;

class SquareImpl : public nn::Module {
 public:
  explicit SquareImpl(std::int64_t width) {
    linear_ = register_module("linear", nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) const { return x + gelu(linear_(x)); }

 private:
  nn::Linear linear_;
};
TESSERA_MODULE(Square);

class DeepModel : public nn::Module {
 public:
  DeepModel() {
    std::vector<Square> made;
    for (std::int64_t i = 0; i < deep_layers; ++i) made.emplace_back(deep_width);
    first_ = register_module("first", nn::Linear(deep_width, deep_width));
    layers_ = register_module("layers", nn::ModuleList<Square>(std::move(made)));
  }
  [[nodiscard]] Tensor loss(Device device) const {
    Tensor x = first_(Tensor::full({deep_rows, deep_width}, 0.1, float32, device));
    for (std::size_t i = 0; i < layers_->size(); ++i) x = (*layers_)[i](x);
    return mean(x);
  }

 private:
  nn::Linear first_;
  nn::ModuleList<Square> layers_;
};

ShardingOptions deep_options(bool offload) {
  ShardingOptions options;
  options.wrap = WrapPolicy::transformer({"Square"});
  options.activation_checkpointing = ActivationCheckpointing::full;
  options.activation_offload = offload;
  return options;
}

RankMemory deep_measured(const ShardingOptions& options) {
  RankMemory measured;
  const auto rank = [&](Context& context) {
    std::optional<DeepModel> net;
    {
      const DeviceGuard deferred(Device::meta());
      net.emplace();
    }
    ShardedModel model = fully_shard(*net, context, options);
    optim::AdamW optimizer(model.parameters(), {});
    for (int step = 0; step < 3; ++step) {
      net->loss(context.device()).backward();
      (void)model.clip_grad_norm(1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    measured = measure_memory(context);
  };
  launch(1, rank, Device::cuda());
  return measured;
}

RankMemory deep_planned(const ShardingOptions& options) {
  const DeviceGuard deferred(Device::meta());
  DeepModel net;
  PlanOptions plan_options;
  plan_options.sharding = options;
  plan_options.loss = [&](Device device) { return net.loss(device); };
  return plan(net, {.ranks = 1, .device = DeviceType::cuda}, plan_options).memory;
}

// The input of the layer whose backward runs stays on the device, and the previous layer's input is
// being copied.
TEST_F(ActivationsOnHost, TakeNoMoreThanTwoInputsOnTheDevice) {
  const RankMemory plain = deep_planned(deep_options(false));
  const RankMemory planned = deep_planned(deep_options(true));
  const RankMemory measured = deep_measured(deep_options(true));
  const std::size_t saved = plain.of(MemoryKind::activations) - planned.of(MemoryKind::activations);
  EXPECT_GE(saved, (deep_layers - 2) * deep_input_bytes);
  EXPECT_LE(saved, (deep_layers - 1) * deep_input_bytes);
  EXPECT_EQ(planned.on_host[MemoryKind::activations], deep_layers * deep_input_bytes);
  EXPECT_EQ(measured.on_host[MemoryKind::activations], deep_layers * deep_input_bytes);
  EXPECT_EQ(plain.on_host.total(), 0u);
  EXPECT_EQ(planned.total(), measured.total());
}

// A forward without backward, inputs that are the same tensor, a view of a tensor, and a tensor
// outside the graph.
TEST_F(ActivationsOnHost, OtherInputsStayAsTheyAre) {
  const Device device = Device::cuda();
  const auto gradients = [&](const std::shared_ptr<ActivationOffload>& offload) {
    RecomputeOptions options;
    options.offload = offload;
    Tensor leaf = Tensor::full({8, 8}, 0.5, float32, device);
    leaf.set_requires_grad(true);
    const Tensor constant = Tensor::full({8, 8}, 0.25, float32, device);
    std::vector<std::vector<double>> seen;
    for (int step = 0; step < 3; ++step) {
      const Tensor made = gelu(leaf);
      const auto body = [](const Tensor& a, const Tensor& b, const Tensor& c, double factor) {
        return gelu(a + b) * factor + c;
      };
      const Tensor dropped = recompute(options, body, made, made, constant, 3.0);
      Tensor result = recompute(options, body, made, made, leaf, 2.0);
      result = recompute(options, body, result, made, constant, 2.0);
      const auto flattened = [](const Tensor& a, const Tensor& b) {
        return a * 2.0 + gelu(reshape(b, {8, 8}));
      };
      result = recompute(options, flattened, result, reshape(result, {64}));
      if (step == 1) continue;  // the graph is destroyed without a backward
      mean(result).backward();
      seen.push_back(leaf.grad().to_vector());
      leaf.zero_grad();
    }
    return seen;
  };
  EXPECT_EQ(gradients(ActivationOffload::create(device)), gradients(nullptr));
}

TEST_F(ActivationsOnHost, AreRefusedWhereTheyHaveNoEffect) {
  const auto refusal = [](ShardingOptions options, Device device) {
    return testing::message_of<Error>([&] {
      launch(
          1,
          [&](Context& context) {
            ToyTransformer net;
            (void)fully_shard(net, context, options);
          },
          device);
    });
  };
  EXPECT_EQ(
      refusal(toy_recomputed(Strategy::full_shard, ActivationCheckpointing::full, true),
              Device::cpu()),
      "activation_offload is for GPUs: a CPU rank keeps activations in the host's memory already; "
      "leave it out");
  EXPECT_EQ(refusal(toy_recomputed(Strategy::full_shard, ActivationCheckpointing::none, true),
                    Device::cuda()),
            "activation_offload requires activation_checkpointing");
}

}  // namespace
}  // namespace tessera

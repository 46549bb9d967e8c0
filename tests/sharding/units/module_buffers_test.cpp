// Buffers of sharded modules: equal at the start, on the rank's device, updated by forwards under
// every strategy, counted, saved once and given to every rank, kept after unwrap().
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "sharding/plan/plan.h"
#include "sharding/sharding_testing.h"

namespace tessera::testing {
namespace {

using Values = std::vector<double>;

// Subtracts a running mean of its inputs, which each forward in training updates.
class CentreImpl : public nn::Module {
 public:
  explicit CentreImpl(std::int64_t width, double start = 0) {
    register_parameter("weight", nn::make_parameter({width}, nn::constant(1)));
    register_buffer("running_mean", nn::make_buffer({width}, nn::constant(start)));
    register_buffer("steps", nn::make_buffer({}, nn::constant(0), int64));
    register_buffer("ones", nn::make_buffer({2}, nn::constant(1)), false);
  }
  Tensor forward(const Tensor& x) {
    if (is_training()) {
      const Tensor mean = sum_to_width(x.detach()) * (1.0 / static_cast<double>(x.size(0)));
      set_buffer("running_mean", buffer("running_mean") * 0.5 + mean * 0.5);
    }
    return (x - buffer("running_mean").clone()) * parameter("weight");
  }
  static Tensor sum_to_width(const Tensor& x) { return reshape(matmul_ones(x), {x.size(1)}); }
  static Tensor matmul_ones(const Tensor& x) {
    return matmul(Tensor::full({1, x.size(0)}, 1, x.dtype(), x.device()), x);
  }
};
TESSERA_MODULE(Centre);

struct Net : nn::Module {
  explicit Net(double start = 0)
      : in(register_module("in", nn::Linear(6, 5))),
        centre(register_module("centre", Centre(5, start))),
        out(register_module("out", nn::Linear(5, 3))) {}
  Tensor loss(const Tensor& x) const { return mean(square(out(centre(in(x))))); }
  nn::Linear in;
  Centre centre;
  nn::Linear out;
};

Tensor inputs(int rank, int step) {
  std::vector<float> x;
  for (int i = 0; i < 24; ++i)
    x.push_back(0.1f * static_cast<float>((i * 7 + step + 5 * rank) % 11 - 5));
  return Tensor::from(x, {4, 6});
}

Values after_training(ShardingOptions options) {
  options.wrap = WrapPolicy::transformer({"Centre"});
  std::vector<Values> means(2);
  launch(2, [&](Context& context) {
    const OneThread one_thread;
    manual_seed(3);
    Net net;
    ShardedModel model = fully_shard(net, context, options);
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      net.loss(inputs(context.rank(), step)).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    means[static_cast<std::size_t>(context.rank())] = model.sharded_buffers()[0].local.to_vector();
  });
  EXPECT_NE(means[0], means[1]);  // each rank's own
  Values both = means[0];
  both.insert(both.end(), means[1].begin(), means[1].end());
  return both;
}

TEST(ModuleBuffers, HaveTheSameBitsUnderEveryStrategyAndRecomputed) {
  const std::optional<Values> expected = after_training(toy_options(Strategy::no_shard));
  for (ShardingOptions options : all_strategies(2)) {
    EXPECT_EQ(after_training(options), *expected) << describe(options);
    options.activation_checkpointing = ActivationCheckpointing::full;
    options.activation_checkpointing_cls = {"Centre"};
    EXPECT_EQ(after_training(options), *expected) << describe(options) << ", recomputed";
  }
}

TEST(ModuleBuffers, OnMetaGetTheirValuesWhenTheModuleIsSharded) {
  launch(2, [](Context& context) {
    manual_seed(3);
    std::optional<DeviceGuard> meta(std::in_place, Device::meta());
    Net net(0.25);
    meta.reset();
    const ShardedModel model = fully_shard(net, context);
    EXPECT_EQ(net.named_buffers()[0].tensor.to_vector(), Values(5, 0.25));
    EXPECT_EQ(net.named_buffers()[1].tensor.dtype(), int64);
    EXPECT_EQ(net.named_buffers()[2].tensor.device(), context.device());
    const std::vector<ShardedParameter> saved = model.sharded_buffers();
    ASSERT_EQ(saved.size(), 2u);  // the third is not persistent
    EXPECT_EQ(saved[0].name, "centre.running_mean");
    EXPECT_EQ(saved[0].save_count, context.is_main() ? 5 : 0);
    EXPECT_EQ(saved[1].shape, Shape{});
  });
}

TEST(ModuleBuffers, OnMetaWithoutValuesAreRefused) {
  launch(1, [](Context& context) {
    struct Bare : nn::Module {
      Bare() { register_buffer("table", Tensor::zeros({2}, float32, Device::meta())); }
    };
    Bare bare;
    EXPECT_EQ(message_of<std::logic_error>([&] { const auto model = fully_shard(bare, context); }),
              "buffer table is on `meta` and has no initializer; make it with nn::make_buffer");
  });
}

TEST(ModuleBuffers, ThatDifferAreNamedOrTakeTheFirstRanksValues) {
  launch(3, [](Context& context) {
    manual_seed(3);
    Net net(context.rank() == 2 ? 0.5 : 0.25);
    EXPECT_EQ(message_of<Error>([&] { const auto model = fully_shard(net, context); }),
              "ranks 0 and 2 begin with different values of the buffer centre.running_mean: make "
              "the module in the same way on every rank, or take rank 0's values with "
              "ShardingOptions::sync_module_states");
    Net again(context.rank() == 2 ? 0.5 : 0.25);
    ShardingOptions options;
    options.sync_module_states = true;
    const ShardedModel model = fully_shard(again, context, options);
    EXPECT_EQ(again.named_buffers()[0].tensor.to_vector(), Values(5, 0.25));
  });
}

TEST(ModuleBuffers, OfOtherShapesAreNamed) {
  launch(2, [](Context& context) {
    struct Bare : nn::Module {
      explicit Bare(int rank) {
        register_parameter("weight", nn::make_parameter({2}, nn::constant(1)));
        register_buffer("table", Tensor::zeros({2 + rank}));
      }
    };
    manual_seed(3);
    Bare bare(context.rank());
    const std::string message =
        message_of<Error>([&] { const auto model = fully_shard(bare, context); });
    EXPECT_NE(
        message.find("rank 0 has \"buffer table [2] float32\" where rank 1 has \"buffer table "
                     "[3] float32\""),
        std::string::npos)
        << message;
  });
}

// The plan counts them, forwards that write them run in it, and the module has its own afterwards.
TEST(ModuleBuffers, ArePlanned) {
  manual_seed(3);
  Net net(0.25);
  const PlanOptions options{
      .loss = [&](Device device) { return net.loss(inputs(0, 0).to(device)); }};
  const PlanWorld world{.ranks = 2};
  const MemoryPlan with = plan(net, world, options);
  EXPECT_EQ(net.named_buffers()[0].tensor.device(), Device::cpu());
  EXPECT_EQ(net.named_buffers()[0].tensor.to_vector(), Values(5, 0.25));
  struct Bare : nn::Module {
    Bare()
        : in(register_module("in", nn::Linear(6, 5))),
          out(register_module("out", nn::Linear(5, 3))) {
      register_parameter("weight", nn::make_parameter({5}, nn::constant(1)));
    }
    Tensor loss(const Tensor& x) const { return mean(square(out(in(x)*parameter("weight")))); }
    nn::Linear in, out;
  };
  Bare bare;
  const PlanOptions without{
      .loss = [&](Device device) { return bare.loss(inputs(0, 0).to(device)); }};
  const MemoryPlan other = plan(bare, world, without);
  EXPECT_EQ(with.memory.of(MemoryKind::parameters), other.memory.of(MemoryKind::parameters) + 36);
}

TEST(ModuleBuffers, AreCountedAndStayAfterUnwrap) {
  launch(2, [](Context& context) {
    manual_seed(3);
    Net with;
    const std::size_t buffers = 5 * sizeof(float) + sizeof(std::int64_t) + 2 * sizeof(float);
    ShardedModel model = fully_shard(with, context);
    struct Bare : nn::Module {  // the same without buffers
      Bare() {
        register_module("in", nn::Linear(6, 5));
        register_parameter("weight", nn::make_parameter({5}, nn::constant(1)));
        register_module("out", nn::Linear(5, 3));
      }
    };
    Bare bare;
    const ShardedModel other = fully_shard(bare, context);
    EXPECT_EQ(model.held_bytes().parameters, other.held_bytes().parameters + buffers);
    with.loss(inputs(0, 0)).backward();
    const Values mean = with.named_buffers()[0].tensor.to_vector();
    EXPECT_THROW((void)fully_shard(with, context), std::logic_error);
    model.unwrap();
    EXPECT_EQ(with.named_buffers()[0].tensor.to_vector(), mean);
  });
}

}  // namespace
}  // namespace tessera::testing

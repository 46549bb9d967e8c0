// Parameters and gradients in wire formats of fewer bits: the same bits under every strategy, bytes
// by formula, errors within the format's bound; and modules that are kept in fp32.
#include "sharding/memory/wires.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "sharding/memory/layouts.h"
#include "sharding/memory/unit_memory.h"
#include "sharding/strategies/strategy_bits.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::message_of;
using testing::same_bits;
using testing::toy_options;
using testing::ToyTransformer;
using testing::train_toy;
using testing::TrainingCase;
using testing::Trajectory;

void expect_equal_reductions(int world, WireFormat wire, const TrainingCase& what) {
  ShardingOptions plain = toy_options(Strategy::no_shard);
  const Trajectory without = train_toy(world, plain, what);
  plain.reduce_wire = wire;
  const Trajectory expected = train_toy(world, plain, what);
  EXPECT_FALSE(same_bits(without, expected));
  for (ShardingOptions options : all_strategies(world)) {
    options.reduce_wire = wire;
    EXPECT_TRUE(same_bits(expected, train_toy(world, options, what)))
        << testing::describe(options) << " on " << world << " ranks, " << what.name << ", "
        << name_of(wire);
  }
}

// Gradients are sent under every strategy.
TEST(Wires, ReducedGradientsAreTheSameUnderEveryStrategy) {
  for (const TrainingCase& what : testing::training_cases()) {
    expect_equal_reductions(what.no_sync ? 3 : 4, WireFormat::int8, what);
  }
  expect_equal_reductions(4, WireFormat::bf16, {.name = "plain"});
}

// Parameters are sent where there is more than one shard: those strategies agree.
TEST(Wires, GatheredParametersAreTheSameUnderEveryShardedStrategy) {
  for (const WireFormat wire :
       {WireFormat::bf16, WireFormat::int8, WireFormat::fp8_e4m3, WireFormat::fp8_e5m2}) {
    for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}, {float16}}) {
      const bool narrower = !dtype || wire != WireFormat::bf16;
      ShardingOptions plain = toy_options(Strategy::full_shard);
      plain.param_dtype = dtype;
      const Trajectory without = train_toy(4, plain);
      plain.gather_wire = wire;
      const Trajectory expected = train_toy(4, plain);
      EXPECT_EQ(static_cast<bool>(same_bits(without, expected)), !narrower) << name_of(wire);
      for (ShardingOptions options : all_strategies(4)) {
        if (shards_of(options, 4) == 1) continue;
        options.param_dtype = dtype;
        options.gather_wire = wire;
        EXPECT_TRUE(same_bits(expected, train_toy(4, options)))
            << testing::describe(options) << ", " << name_of(wire);
      }
    }
  }
}

// A single rank sends nothing.
TEST(Wires, OneRankIsNotRounded) {
  for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
    ShardingOptions options = toy_options(strategy);
    const Trajectory expected = train_toy(1, options);
    options.gather_wire = options.reduce_wire = WireFormat::int8;
    EXPECT_TRUE(same_bits(expected, train_toy(1, options)));
  }
}

TEST(Wires, TrainingStaysCloseToThatWithoutThem) {
  const Trajectory expected = train_toy(2, toy_options(Strategy::full_shard));
  for (const WireFormat wire : {WireFormat::bf16, WireFormat::int8, WireFormat::fp8_e4m3}) {
    ShardingOptions options = toy_options(Strategy::full_shard);
    options.gather_wire = wire;
    if (wire != WireFormat::fp8_e4m3) options.reduce_wire = wire;
    const std::vector<double> losses = train_toy(2, options).mean_losses();
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const double loss = expected.mean_losses()[i];
      EXPECT_NEAR(losses[i], loss, 2e-2 * loss) << name_of(wire) << ", step " << i;
    }
  }
}

std::uint64_t bytes_of_step(int world, const ShardingOptions& options) {
  std::uint64_t bytes = 0;
  testing::on_ranks(world, options,
                    [&](Context& context, ToyTransformer& net, ShardedModel& model) {
                      optim::Sgd optimizer(model.parameters(), {.lr = 1e-2});
                      for (int step = 0; step < 2; ++step) {
                        const std::uint64_t before = model.communication().bytes;
                        testing::train_once(context, net);
                        model.clip_grad_norm(0, 1);  // no loss scale is required
                        optimizer.step();
                        optimizer.zero_grad();
                        if (context.is_main()) bytes = model.communication().bytes - before;
                      }
                    });
  return bytes;
}

// FULL_SHARD: two gathers per unit, one for the root and the last unit, and one reduction each.
TEST(Wires, BytesFollowTheFormula) {
  constexpr int world = 4;
  for (const WireFormat gathers : {WireFormat::same, WireFormat::bf16, WireFormat::int8}) {
    for (const WireFormat reduces : {WireFormat::same, WireFormat::bf16, WireFormat::int8}) {
      ShardingOptions options = toy_options(Strategy::full_shard);
      options.gather_wire = gathers;
      options.reduce_wire = reduces;
      const auto per_element = [](WireFormat wire) {
        return wire == WireFormat::same ? 4.0 : wire == WireFormat::bf16 ? 2.0 : 33.0 / 32.0;
      };
      ToyTransformer net;
      const auto units = testing::expected_units(net, options.wrap, options.param_dtype);
      double expected = 0;
      for (std::size_t i = 0; i < units.size(); ++i) {
        const auto elements = static_cast<double>(units[i].layout(world).share_bytes()) / 4;
        const int times = i == 0 || i + 1 == units.size() ? 1 : 2;
        expected += (world - 1) * elements * (times * per_element(gathers) + per_element(reduces));
      }
      EXPECT_EQ(static_cast<double>(bytes_of_step(world, options)), expected)
          << name_of(gathers) << ", " << name_of(reduces);
    }
  }
}

std::string wires_refusal_of(const ShardingOptions& options) {
  return message_of<Error>([&] {
    launch(1, [&](Context& context) {
      ToyTransformer net;
      fully_shard(net, context, options);
    });
  });
}

TEST(Wires, RefuseUnsupportedFormatsForGradients) {
  EXPECT_EQ(wires_refusal_of({.reduce_wire = WireFormat::fp8_e4m3}),
            "gradients travel as same, bf16 or int8, not as fp8_e4m3");
}

ShardingOptions with_norms_kept(Strategy strategy, DType dtype, int group = 0) {
  ShardingOptions options = toy_options(strategy, group);
  options.param_dtype = dtype;
  options.keep_fp32 = {"LayerNorm", "RmsNorm"};
  return options;
}

TEST(KeptModules, ComputeInFloat32UnderEveryStrategy) {
  for (const DType dtype : {bfloat16, float16}) {
    ShardingOptions plain = toy_options(Strategy::no_shard);
    plain.param_dtype = dtype;
    const Trajectory without = train_toy(2, plain);
    const Trajectory expected = train_toy(2, with_norms_kept(Strategy::no_shard, dtype));
    EXPECT_FALSE(same_bits(without, expected));
    for (ShardingOptions options : all_strategies(2)) {
      EXPECT_TRUE(same_bits(
          expected, train_toy(2, with_norms_kept(options.strategy, dtype, options.group_size))))
          << testing::describe(options);
    }
  }
}

// Their parameters are gathered in fp32, the others' are not; the gradient's buffer stays narrow.
TEST(KeptModules, OnlyTheyAreWideAndOnlyWhileTheyAreSharded) {
  launch(2, [](Context& context) {
    ToyTransformer net;
    {
      ShardedModel model =
          fully_shard(net, context, with_norms_kept(Strategy::full_shard, bfloat16));
      const auto whole = model.unsharded();
      for (const auto& parameter : net.named_parameters()) {
        const bool norm = parameter.name.find("norm") != std::string::npos;
        EXPECT_EQ(parameter.tensor.dtype(), norm ? float32 : bfloat16) << parameter.name;
      }
      for (const auto& [name, module] : net.named_modules()) {
        EXPECT_EQ(module->precision().has_value(), name.find("norm") != std::string::npos) << name;
      }
    }
    for (const auto& [name, module] : net.named_modules()) EXPECT_FALSE(module->precision());
  });
}

TEST(KeptModules, RecomputationGivesTheSameBits) {
  ShardingOptions options = with_norms_kept(Strategy::full_shard, bfloat16);
  const Trajectory expected = train_toy(2, options);
  options.activation_checkpointing = ActivationCheckpointing::full;
  EXPECT_TRUE(same_bits(expected, train_toy(2, options)));
}

// fp64 in a kept module stays fp64, as do its gradients and those of its unit.
TEST(KeptModules, Float64IsSummedInFloat64) {
  ShardingOptions options = with_norms_kept(Strategy::full_shard, bfloat16);
  const ParameterSpec narrow{.name = "w", .shape = {64}, .compute_dtype = bfloat16};
  const ParameterSpec kept{.name = "norm", .shape = {64}};
  ParameterSpec wide_spec{.name = "wide", .shape = {64}};
  wide_spec.master_dtype = wide_spec.compute_dtype = float64;
  EXPECT_EQ(gradient_dtype_of(UnitLayout({narrow, kept}, 2), options), bfloat16);
  EXPECT_EQ(gradient_dtype_of(UnitLayout({narrow, kept, wide_spec}, 2), options), float64);
  wide_spec.trainable = false;
  EXPECT_EQ(gradient_dtype_of(UnitLayout({narrow, kept, wide_spec}, 2), options), bfloat16);
  wide_spec.trainable = true;
  options.reduce_dtype = float32;
  EXPECT_EQ(gradient_dtype_of(UnitLayout({narrow, kept, wide_spec}, 2), options), float32);
}

TEST(KeptModules, AreRefusedByName) {
  ShardingOptions options = with_norms_kept(Strategy::full_shard, bfloat16);
  options.keep_fp32 = {"LayerNom"};
  EXPECT_EQ(wires_refusal_of(options),
            "keep_fp32: no module of the model is a LayerNom; there are Dropout, Embedding, "
            "LayerNorm, Linear, ModuleList, RmsNorm, ToyAttention, ToyBlock, ToyTransformer");
  options.keep_fp32 = {"LayerNorm"};
  options.param_dtype.reset();
  EXPECT_EQ(wires_refusal_of(options), "keep_fp32 requires param_dtype bfloat16 or float16");
}

}  // namespace
}  // namespace tessera

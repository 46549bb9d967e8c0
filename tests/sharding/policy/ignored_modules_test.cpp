// Ignored modules: whole on every rank and unchanged, in no unit and no collective, with the same
// bits under every strategy; ranks that diverge get an error.
#include "sharding/policy/ignored_modules.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "base/error.h"
#include "sharding/memory/layouts.h"
#include "sharding/plan/planned_toy.h"

namespace tessera {
namespace {

using testing::all_strategies;
using testing::exact_kinds;
using testing::message_of;
using testing::same_bits;
using testing::toy_options;
using testing::ToyTransformer;
using testing::TrainingCase;
using testing::Trajectory;

// A unit, and a module of the root unit.
const std::vector<std::string> left_alone = {"blocks.1", "norm"};

bool is_left_alone(const std::string& parameter) {
  return parameter.starts_with("blocks.1.") || parameter.starts_with("norm.");
}

class WithFixedPart : public ToyTransformer {
 public:
  explicit WithFixedPart(double dropout = 0) : ToyTransformer(dropout) {
    for (auto& parameter : named_parameters()) {
      parameter.tensor.set_requires_grad(!is_left_alone(parameter.name));
    }
  }
};

ShardingOptions ignoring(ShardingOptions options,
                         const std::vector<std::string>& modules = left_alone) {
  options.ignored_modules = modules;
  return options;
}

Trajectory train_fixed_part(int world, const ShardingOptions& options, const TrainingCase& what) {
  return testing::train_ranks(world, options, what, [](double dropout) {
    return std::make_unique<WithFixedPart>(dropout);
  });
}

// Frozen modules compute the same, ignored or not.
TEST(IgnoredModules, ChangeNoBitUnderAnyStrategy) {
  const TrainingCase what{.dropout = 0.1, .micro_batches = 2, .max_norm = 0.1, .steps = 2};
  for (const int world : {2, 3}) {
    const Trajectory expected = train_fixed_part(world, toy_options(Strategy::no_shard), what);
    for (const ShardingOptions& options : all_strategies(world)) {
      EXPECT_TRUE(same_bits(expected, train_fixed_part(world, ignoring(options), what)))
          << testing::describe(options) << " on " << world;
    }
  }
}

// Beside bf16 they compute in fp32, and their inputs and outputs are cast.
TEST(IgnoredModules, KeepTheirDTypeUnderEveryStrategy) {
  const TrainingCase what{.max_norm = 0.1, .steps = 2};
  ShardingOptions narrow = toy_options(Strategy::no_shard);
  narrow.param_dtype = bfloat16;
  const Trajectory expected = train_fixed_part(2, ignoring(narrow), what);
  EXPECT_FALSE(same_bits(expected, train_fixed_part(2, narrow, what)));
  for (ShardingOptions options : all_strategies(2)) {
    options.param_dtype = bfloat16;
    for (const auto how : {ActivationCheckpointing::none, ActivationCheckpointing::full}) {
      options.activation_checkpointing = how;
      EXPECT_TRUE(same_bits(expected, train_fixed_part(2, ignoring(options), what)))
          << testing::describe(options);
    }
  }
}

TEST(IgnoredModules, KeepTheirTensors) {
  ShardingOptions options = toy_options(Strategy::full_shard);
  options.param_dtype = bfloat16;
  options.keep_fp32 = {"LayerNorm"};  // the ignored norm is one, too
  launch(3, [&](Context& context) {
    manual_seed(3);
    WithFixedPart net;
    const auto before = net.named_parameters();
    {
      const ShardedModel model = fully_shard(net, context, ignoring(options));
      EXPECT_EQ(model.units(), (std::vector<std::string>{"", "blocks.0", "blocks.2"}));
      for (const auto& parameter : model.parameters()) {
        EXPECT_FALSE(is_left_alone(parameter.name)) << parameter.name;
      }
      std::size_t ignored = 0;
      for (const auto& parameter : before) ignored += is_left_alone(parameter.name) ? 1 : 0;
      EXPECT_EQ(model.ignored_parameters().size(), ignored);
      const auto now = net.named_parameters();
      ASSERT_EQ(now.size(), before.size());
      for (std::size_t i = 0; i < now.size(); ++i) {
        EXPECT_EQ(now[i].tensor.impl() == before[i].tensor.impl(), is_left_alone(now[i].name))
            << now[i].name;
      }
      for (const auto& [name, module] : net.named_modules()) {
        const bool cast = name == "norm" || name == "blocks.1" ||
                          (name.ends_with("norm1") && name != "blocks.1.norm1");
        EXPECT_EQ(module->precision().has_value(), cast) << name;
      }
    }
    for (const auto& [name, module] : net.named_modules()) EXPECT_FALSE(module->precision());
  });
}

TEST(IgnoredModules, DrawTheValuesThatTheWholeModelHas) {
  launch(2, [](Context& context) {
    manual_seed(5);
    const ToyTransformer built;
    manual_seed(5);
    std::optional<ToyTransformer> deferred;
    {
      const DeviceGuard meta(Device::meta());
      deferred.emplace();
    }
    const ShardedModel model =
        fully_shard(*deferred, context, ignoring(toy_options(Strategy::full_shard)));
    std::size_t found = 0;
    for (const auto& expected : built.named_parameters()) {
      for (const auto& parameter : model.ignored_parameters()) {
        if (parameter.name != expected.name) continue;
        ++found;
        EXPECT_EQ(parameter.tensor.to_vector(), expected.tensor.to_vector()) << expected.name;
        EXPECT_TRUE(parameter.tensor.requires_grad());
      }
    }
    EXPECT_EQ(found, model.ignored_parameters().size());
    EXPECT_GT(found, 2u);
  });
}

// To the byte: a plan, a run, and the layout of the unit.
TEST(IgnoredModules, AreWholeInMemoryAndInNoCollective) {
  constexpr int world = 2;
  ToyTransformer net;
  const std::vector<std::string> block = {"blocks.1"};
  for (const auto& unit : testing::expected_units(net, toy_options(Strategy::full_shard).wrap)) {
    if (unit.name != block.front()) continue;
    const UnitLayout layout = unit.layout(world);
    std::size_t whole = 0;
    for (const auto& slot : layout.slots()) {
      whole += static_cast<std::size_t>(slot.range.count) * sizeof(float);
    }
    const ShardingOptions options = toy_options(Strategy::full_shard);
    const auto all = testing::run_toy(world, {.sharding = options}).front();
    const auto rest = testing::run_toy(world, {.sharding = ignoring(options, block)}).front();
    EXPECT_EQ(rest.memory.of(MemoryKind::parameters),
              all.memory.of(MemoryKind::parameters) + whole - layout.share_bytes());
    // Two gathers and one reduction of a half each.
    EXPECT_EQ(rest.moved, all.moved - 3 * layout.bytes() / world);
    launch(world, [&](Context& context) {
      ToyTransformer one, other;
      const auto with = fully_shard(one, context, ignoring(options, block)).held_bytes();
      const auto without = fully_shard(other, context, options).held_bytes();
      EXPECT_EQ(with.parameters, without.parameters + whole - layout.share_bytes());
    });
  }
  for (ShardingOptions sharding : all_strategies(world)) {
    for (const std::optional<DType> dtype : {std::optional<DType>{}, {bfloat16}}) {
      sharding.param_dtype = dtype;
      const testing::PlannedCase what{.sharding = ignoring(sharding), .micro_batches = 2};
      const MemoryPlan planned = testing::plan_toy(world, what);
      const testing::Measured measured = testing::run_toy(world, what).front();
      for (const MemoryKind kind : exact_kinds) {
        EXPECT_EQ(planned.memory.of(kind), measured.memory.of(kind))
            << testing::describe(sharding) << ": " << name_of(kind);
      }
      EXPECT_EQ(planned.total(), measured.memory.total()) << testing::describe(sharding);
      EXPECT_EQ(planned.moved_bytes(), measured.moved) << testing::describe(sharding);
    }
  }
}

void average_gradients(const Context& context, const ShardedModel& model) {
  comm::Communicator& world = context.communicator();
  for (const auto& parameter : model.ignored_parameters()) {
    const Tensor gradient = parameter.tensor.grad();
    const auto buffer =
        world.allocate("an ignored gradient", gradient.bytes(), comm::Sharing::per_rank);
    world.acquire(*buffer);
    std::memcpy(buffer->data(), gradient.data(), gradient.bytes());
    world.all_reduce(*buffer, gradient.elements(), gradient.raw_data(),
                     {.scale = 1.0f / static_cast<float>(world.size())}, {});
  }
}

// Two steps of AdamW, which also trains ignored parameters.
std::map<std::string, std::vector<double>> train_all(const ShardingOptions& options,
                                                     bool averages) {
  testing::Collected collected;
  launch(3, [&](Context& context) {
    const testing::OneThread one_thread;
    manual_seed(3);
    ToyTransformer net;
    const ShardedModel model = fully_shard(net, context, options);
    auto parameters = model.parameters();
    for (const auto& ignored : model.ignored_parameters()) parameters.push_back(ignored);
    optim::AdamW optimizer(parameters, {.lr = 1e-2});
    for (int step = 0; step < 2; ++step) {
      testing::train_once(context, net);
      if (averages) average_gradients(context, model);
      optimizer.step();
      optimizer.zero_grad();
    }
    if (averages || options.ignored_modules.empty()) {
      model.compare_ignored_parameters();
    } else {
      EXPECT_EQ(
          message_of<Error>([&] { model.compare_ignored_parameters(); }).substr(0, 84),
          "ignored_modules: ranks 0 and 1 have different values of blocks.1.norm1.weight, which");
    }
    collected.add(model);
  });
  return collected.values();
}

// If the program sums their gradients, they are trained like all others; if not, the ranks diverge.
TEST(IgnoredModules, AreTrainedIfTheProgramSumsTheirGradients) {
  const auto expected = train_all(toy_options(Strategy::no_shard), false);
  EXPECT_EQ(train_all(ignoring(toy_options(Strategy::full_shard)), true), expected);
  EXPECT_NE(train_all(ignoring(toy_options(Strategy::full_shard)), false), expected);
}

TEST(IgnoredModules, ThatDifferBetweenRanksAreRefused) {
  launch(3, [](Context& context) {
    manual_seed(3);
    ToyTransformer net;
    for (const auto& parameter : net.named_parameters()) {
      Tensor value = parameter.tensor;
      if (context.rank() == 2 && parameter.name == "blocks.2.in.weight")
        value.data_as<float>()[7] += 1e-6f;
    }
    EXPECT_NE(message_of<Error>([&] {
                (void)fully_shard(net, context,
                                  ignoring(toy_options(Strategy::full_shard), {"blocks.2.in"}));
              }).find("ranks 0 and 2 have different values of blocks.2.in.weight"),
              std::string::npos);
    manual_seed(3);
    ToyTransformer again;
    const std::vector<std::string> mine =
        context.rank() == 1 ? std::vector<std::string>{"norm"} : std::vector<std::string>{"tokens"};
    EXPECT_NE(message_of<Error>([&] {
                (void)fully_shard(again, context,
                                  ignoring(toy_options(Strategy::full_shard), mine));
              }).find("rank 1 has \"ignored parameter norm.weight [24] float32\""),
              std::string::npos);
  });
}

template <class Net = ToyTransformer>
std::string ignored_refusal(const ShardingOptions& options) {
  std::string message;
  launch(1, [&](Context& context) {
    Net net;
    message = message_of<Error>([&] { (void)fully_shard(net, context, options); });
    for (const auto& [name, module] : net.named_modules()) EXPECT_FALSE(module->precision());
  });
  return message;
}

// Two layers over one weight.
class TiedLayers : public nn::Module {
 public:
  TiedLayers() {
    first_ = register_module("first", nn::Linear(4, 4));
    second_ = register_module("second", Reader(std::make_shared<ReaderImpl>(first_->weight())));
  }

 private:
  struct ReaderImpl : nn::Module {
    explicit ReaderImpl(const Tensor& weight) {
      register_parameter("weight", weight);
      register_parameter("own", nn::make_parameter({4}, nn::constant(0)));
    }
    Tensor forward(const Tensor& x) const { return linear(x, parameter("weight")); }
  };
  TESSERA_MODULE(Reader);
  nn::Linear first_;
  Reader second_;
};

TEST(IgnoredModules, AreRefusedByName) {
  const ShardingOptions plain = toy_options(Strategy::full_shard);
  EXPECT_EQ(ignored_refusal(ignoring(plain, {"block.1"})),
            "ignored_modules: no module is called \"block.1\"; the model has tokens, blocks, norm");
  EXPECT_EQ(ignored_refusal(ignoring(plain, {"norm", "blocks.3"})),
            "ignored_modules: no module is called \"blocks.3\"; blocks has 0, 1, 2");
  EXPECT_EQ(ignored_refusal(ignoring(plain, {""})),
            "ignored_modules: no module is called \"\"; the model has tokens, blocks, norm");
  ShardingOptions options = plain;
  options.ignored_pattern = "blocks";
  EXPECT_EQ(ignored_refusal(options), "no exception");
  options.ignored_pattern = "block";
  EXPECT_EQ(ignored_refusal(options),
            "ignored_modules: no module's whole name matches \"block\"; a name is as norm");
  options.ignored_pattern = "blocks.(";
  EXPECT_NE(
      ignored_refusal(options).find("ignored_modules: \"blocks.(\" is not a regular expression"),
      std::string::npos);
  options = ignoring(plain, {"blocks.1"});
  options.wrap = WrapPolicy::list({"blocks.0", "blocks.1.attention"});
  EXPECT_EQ(ignored_refusal(options),
            "module blocks.1.attention is to be a unit and is ignored; leave it out of one of the "
            "lists");
  options.wrap = WrapPolicy::size(1);
  EXPECT_EQ(ignored_refusal(options), "no exception");
  options = ignoring({}, {"first"});
  EXPECT_EQ(ignored_refusal<TiedLayers>(options),
            "ignored_modules: parameter first.weight is used outside of the ignored modules as "
            "well (tied), and is sharded there; ignore all modules that use it, or none");
  options = ignoring({}, {"first", "second"});
  EXPECT_EQ(ignored_refusal<TiedLayers>(options),
            "ignored_modules: every parameter of the model is ignored, and nothing is left to "
            "shard");
}

// An input that is combined with others in one operation cannot be cast separately.
class FusedBlock : public nn::Module {
 public:
  FusedBlock() { block_ = register_module("block", Block(std::make_shared<BlockImpl>())); }

 private:
  struct BlockImpl : nn::Module {
    BlockImpl() {
      norm = register_module("norm", nn::LayerNorm(4));
      out = register_module("out", nn::Linear(4, 4));
    }
    [[nodiscard]] bool is_indivisible() const override { return true; }
    Tensor forward(const Tensor& x) const { return out(norm(x)); }
    nn::LayerNorm norm;
    nn::Linear out;
  };
  TESSERA_MODULE(Block);
  Block block_;
};

TEST(IgnoredModules, ThatCannotKeepTheirDTypeAreRefused) {
  ShardingOptions options = ignoring({}, {"block.norm"});
  EXPECT_EQ(ignored_refusal<FusedBlock>(options), "no exception");
  options.param_dtype = bfloat16;
  EXPECT_EQ(ignored_refusal<FusedBlock>(options),
            "ignored_modules: block.norm keeps its own dtype beside param_dtype bfloat16, and is "
            "used by the module around it in one operation with others, so that nothing can be "
            "cast around it; ignore what is around it instead, or make its parameters bfloat16");
}

}  // namespace
}  // namespace tessera

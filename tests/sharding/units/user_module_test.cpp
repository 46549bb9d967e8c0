// Users' modules, of every permitted shape, under every strategy and wrap policy.
#include <gtest/gtest.h>

#include "sharding/sharding_testing.h"

namespace tessera {
namespace {

using testing::Collected;
using testing::same_bits;
using testing::TrainingCase;
using testing::Trajectory;

constexpr std::int64_t features = 13;
constexpr std::int64_t classes = 5;

// Floats and one label per sample, from the shared toy batches.
Tensor inputs_of(const Tensor& ids) {
  std::vector<float> values;
  const std::vector<double> numbers = ids.to_vector();
  for (std::int64_t row = 0; row < ids.size(0); ++row) {
    for (std::int64_t i = 0; i < features; ++i) {
      const double id = numbers[static_cast<std::size_t>(row * ids.size(1) + i % ids.size(1))];
      values.push_back(static_cast<float>(id / 29 - 0.1 * static_cast<double>(i)));
    }
  }
  return Tensor::from(values, {ids.size(0), features});
}
Tensor labels_of(const Tensor& targets) {
  std::vector<std::int64_t> labels;
  const std::vector<double> numbers = targets.to_vector();
  for (std::int64_t row = 0; row < targets.size(0); ++row) {
    labels.push_back(
        static_cast<std::int64_t>(numbers[static_cast<std::size_t>(row * targets.size(1))]) %
        classes);
  }
  return Tensor::from(labels, {targets.size(0)});
}

// A root that is an ordinary object: called as net.forward(x), without hooks.
class UserModule : public nn::Module {
 public:
  virtual Tensor forward(const Tensor& x) = 0;
  Tensor loss(const Tensor& ids, const Tensor& targets) {
    return cross_entropy(forward(inputs_of(ids)), labels_of(targets));
  }
};

// The example of the design document.
class Net : public UserModule {
 public:
  explicit Net(double = 0) {
    fc1_ = register_module("fc1", nn::Linear(features, 16));
    fc2_ = register_module("fc2", nn::Linear(16, classes));
  }
  Tensor forward(const Tensor& x) override { return fc2_(relu(fc1_(x))); }

 private:
  nn::Linear fc1_, fc2_;
};

// Parameters of the root itself, before and after its modules.
class RootParameters : public UserModule {
 public:
  explicit RootParameters(double = 0) {
    register_parameter("scale", nn::make_parameter({features}, nn::uniform(0.5, 1.5)));
    fc1_ = register_module("fc1", nn::Linear(features, 7));
    fc2_ = register_module("fc2", nn::Linear(7, classes));
    register_parameter("temperature", nn::make_parameter({1}, nn::constant(1.3)));
  }
  Tensor forward(const Tensor& x) override {
    const Tensor scaled = cast(x, parameter("scale").dtype()) * parameter("scale");
    return fc2_(relu(fc1_(scaled))) * parameter("temperature");
  }

 private:
  nn::Linear fc1_, fc2_;
};

// A unit that is called twice in one forward.
class CalledTwice : public UserModule {
 public:
  explicit CalledTwice(double = 0) {
    fc1_ = register_module("fc1", nn::Linear(features, features));
    fc2_ = register_module("fc2", nn::Linear(features, classes));
  }
  Tensor forward(const Tensor& x) override { return fc2_(fc1_(relu(fc1_(x)))); }

 private:
  nn::Linear fc1_, fc2_;
};

class HalfUsedImpl : public nn::Module {
 public:
  HalfUsedImpl() {
    register_parameter("used", nn::make_parameter({features}, nn::uniform(-1, 1)));
    register_parameter("unused", nn::make_parameter({3, features}, nn::uniform(-1, 1)));
  }
  Tensor forward(const Tensor& x) const {
    return cast(x, parameter("used").dtype()) * parameter("used");
  }
};
TESSERA_MODULE(HalfUsed);

// A parameter and a whole unit that no forward uses.
class Unused : public UserModule {
 public:
  explicit Unused(double = 0) {
    fc1_ = register_module("fc1", HalfUsed(std::make_shared<HalfUsedImpl>()));
    register_module("spare", nn::Linear(9, 9));
    fc2_ = register_module("fc2", nn::Linear(features, classes));
  }
  Tensor forward(const Tensor& x) override { return fc2_(fc1_(x)); }

 private:
  HalfUsed fc1_;
  nn::Linear fc2_;
};

class AdaptedImpl : public nn::Module {
 public:
  AdaptedImpl() {
    base_ = register_module("base", nn::Linear(features, features));
    down_ = register_module("down", nn::Linear(features, 2, nn::LinearOptions{.bias = false}));
    up_ = register_module("up", nn::Linear(2, features, nn::LinearOptions{.bias = false}));
    for (const auto& parameter : base_->named_parameters()) {
      Tensor(parameter.tensor).set_requires_grad(false);
    }
  }
  Tensor forward(const Tensor& x) const { return base_(x) + up_(down_(x)); }

 private:
  nn::Linear base_, down_, up_;
};
TESSERA_MODULE(Adapted);

// Frozen parameters beside trainable ones, and a completely frozen unit.
class Frozen : public UserModule {
 public:
  explicit Frozen(double = 0) {
    fc1_ = register_module("fc1", nn::Linear(features, features));
    for (const auto& parameter : fc1_->named_parameters()) {
      Tensor(parameter.tensor).set_requires_grad(false);
    }
    adapted_ = register_module("adapted", Adapted(std::make_shared<AdaptedImpl>()));
    fc2_ = register_module("fc2", nn::Linear(features, classes));
  }
  Tensor forward(const Tensor& x) override { return fc2_(relu(adapted_(relu(fc1_(x))))); }

 private:
  nn::Linear fc1_, fc2_;
  Adapted adapted_;
};

class MixedImpl : public nn::Module {
 public:
  MixedImpl() {
    const auto in = [this](DType dtype, const char* name) {
      const nn::ParameterDTypeGuard guard(dtype);
      return register_module(name, nn::Linear(features, features));
    };
    wide_ = in(float32, "wide");
    narrow_ = in(bfloat16, "narrow");
  }
  Tensor forward(const Tensor& x) const {
    return wide_(cast(relu(narrow_(cast(x, bfloat16))), float32));
  }

 private:
  nn::Linear wide_, narrow_;
};
TESSERA_MODULE(Mixed);

// fp32 and bf16 in one unit.
class MixedDTypes : public UserModule {
 public:
  explicit MixedDTypes(double = 0) {
    fc1_ = register_module("fc1", Mixed(std::make_shared<MixedImpl>()));
    fc2_ = register_module("fc2", nn::Linear(features, classes));
  }
  Tensor forward(const Tensor& x) override { return fc2_(fc1_(x)); }

 private:
  Mixed fc1_;
  nn::Linear fc2_;
};

class SharedWeightImpl : public nn::Module {
 public:
  explicit SharedWeightImpl(const Tensor& weight) {
    register_parameter("weight", weight);
    register_parameter("bias", nn::make_parameter({features}, nn::constant(0.1)));
  }
  Tensor forward(const Tensor& x) const {
    return linear(x, parameter("weight"), parameter("bias"));
  }
};
TESSERA_MODULE(SharedWeight);

// One weight in two units.
class TiedAcrossUnits : public UserModule {
 public:
  explicit TiedAcrossUnits(double = 0) {
    const Tensor weight = nn::make_parameter({features, features}, nn::uniform(-0.4, 0.4));
    fc1_ = register_module("fc1", SharedWeight(std::make_shared<SharedWeightImpl>(weight)));
    again_ = register_module("again", SharedWeight(std::make_shared<SharedWeightImpl>(weight)));
    fc2_ = register_module("fc2", nn::Linear(features, classes));
  }
  Tensor forward(const Tensor& x) override { return fc2_(again_(relu(fc1_(x)))); }

 private:
  SharedWeight fc1_, again_;
  nn::Linear fc2_;
};

class WithOneOfItsOwnImpl : public nn::Module {
 public:
  explicit WithOneOfItsOwnImpl(const nn::Linear& shared)
      : own_(register_module("own", nn::Linear(features, features))),
        shared_(register_module("shared", shared)) {}
  Tensor forward(const Tensor& x) const { return relu(shared_(own_(x))); }

 private:
  nn::Linear own_, shared_;
};
TESSERA_MODULE(WithOneOfItsOwn);

// One module in two units.
class ModuleInTwoUnits : public UserModule {
 public:
  explicit ModuleInTwoUnits(double = 0) {
    const nn::Linear shared(features, features);
    fc1_ = register_module("fc1", WithOneOfItsOwn(shared));
    again_ = register_module("again", WithOneOfItsOwn(shared));
    fc2_ = register_module("fc2", nn::Linear(features, classes));
  }
  Tensor forward(const Tensor& x) override { return fc2_(again_(fc1_(x))); }

 private:
  WithOneOfItsOwn fc1_, again_;
  nn::Linear fc2_;
};

template <class Module>
Trajectory train(int world, const ShardingOptions& options, const TrainingCase& what = {}) {
  return testing::train_ranks(world, options, what,
                              [](double dropout) { return std::make_unique<Module>(dropout); });
}

// The module without sharding: the reference on one rank.
template <class Module>
Trajectory train_plain(const TrainingCase& what) {
  Trajectory result;
  const testing::OneThread one_thread;
  manual_seed(17);
  Module net;
  optim::AdamW optimizer(net.named_parameters(), {.lr = 1e-2, .decay = optim::decay_matrices});
  result.losses.resize(1);
  for (int step = 0; step < what.steps; ++step) {
    const auto batch = testing::toy_batch(step * what.batch, what.batch);
    const Tensor loss = net.loss(batch.ids, batch.targets);
    loss.backward();
    result.losses[0].push_back(loss.item());
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& [name, tensor, shape] : net.named_parameters()) {
    result.parameters[name] = tensor.to_vector();
  }
  return result;
}

template <class Module>
class UserModules : public ::testing::Test {};
using Modules = ::testing::Types<Net, RootParameters, CalledTwice, Unused, Frozen, MixedDTypes,
                                 TiedAcrossUnits, ModuleInTwoUnits>;
class ModuleNames {
 public:
  template <class Module>
  static std::string GetName(int) {
    return Module().class_name();
  }
};
TYPED_TEST_SUITE(UserModules, Modules, ModuleNames);

TYPED_TEST(UserModules, EveryStrategyAndPolicy) {
  const TrainingCase what{.micro_batches = 2, .max_norm = 0.1};
  for (const int world : {2, 3}) {
    for (const auto& policy : {WrapPolicy::none(), WrapPolicy::list({"fc1", "fc2"})}) {
      for (const std::optional<DType> param_dtype : {std::optional<DType>{}, {bfloat16}}) {
        if (world == 3 && param_dtype) continue;  // two ranks have already shown it
        Trajectory expected;
        for (ShardingOptions options : testing::all_strategies(world)) {
          options.wrap = policy;
          options.param_dtype = param_dtype;
          const Trajectory got = train<TypeParam>(world, options, what);
          if (options.strategy == Strategy::no_shard) expected = got;
          EXPECT_TRUE(same_bits(expected, got)) << testing::describe(options) << ' ' << world;
        }
      }
    }
  }
}

// Excluded: bf16 parameters, which without sharding have no fp32 masters to update, and unused
// parameters, whose gradient is zero in a unit and absent without sharding.
template <class Module>
class PlainModules : public ::testing::Test {};
using Plain =
    ::testing::Types<Net, RootParameters, CalledTwice, Frozen, TiedAcrossUnits, ModuleInTwoUnits>;
TYPED_TEST_SUITE(PlainModules, Plain, ModuleNames);

TYPED_TEST(PlainModules, OneRankIsThePlainModule) {
  const TrainingCase what{.steps = 4};
  const Trajectory expected = train_plain<TypeParam>(what);
  for (const auto& policy : {WrapPolicy::none(), WrapPolicy::list({"fc1", "fc2"})}) {
    ShardingOptions options;
    options.wrap = policy;
    for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
      options.strategy = strategy;
      Trajectory got = train<TypeParam>(1, options, what);
      got.norms.clear();
      EXPECT_TRUE(same_bits(expected, got)) << testing::describe(options);
    }
  }
}

// Both units, and the shared module by itself, for every choice of units.
TEST(UserModuleParts, AModuleInTwoUnitsTrainsAsWithoutSharding) {
  const TrainingCase what{.micro_batches = 2, .max_norm = 0.1};
  const Trajectory expected = train<ModuleInTwoUnits>(2, {.strategy = Strategy::no_shard}, what);
  for (const auto& policy :
       {WrapPolicy::list({"fc1", "again"}), WrapPolicy::list({"fc1", "fc1.shared", "again"}),
        WrapPolicy::transformer({"WithOneOfItsOwn"}), WrapPolicy::size(100)}) {
    for (ShardingOptions options : testing::all_strategies(2)) {
      options.wrap = policy;
      EXPECT_TRUE(same_bits(expected, train<ModuleInTwoUnits>(2, options, what)))
          << testing::describe(options);
    }
  }
}

TEST(UserModuleParts, FrozenParametersStay) {
  const Trajectory before = train<Frozen>(2, {.wrap = WrapPolicy::list({"adapted"})}, {.steps = 0});
  const Trajectory after = train<Frozen>(2, {.wrap = WrapPolicy::list({"adapted"})});
  for (const auto& [name, values] : after.parameters) {
    const bool frozen = name.starts_with("fc1.") || name.starts_with("adapted.base.");
    EXPECT_EQ(values == before.parameters.at(name), frozen) << name;
  }
}

TEST(UserModuleParts, UnusedUnitsStay) {
  const ShardingOptions options{.wrap = WrapPolicy::list({"fc1", "spare", "fc2"})};
  const Trajectory before = train<Unused>(2, options, {.steps = 0});
  const Trajectory after = train<Unused>(2, options);
  EXPECT_EQ(after.parameters.at("spare.weight"), before.parameters.at("spare.weight"));
  EXPECT_NE(after.parameters.at("fc1.used"), before.parameters.at("fc1.used"));
}

// A head over the table of another module, with or without declaring it.
class HeadOverTableImpl : public nn::Module {
 public:
  HeadOverTableImpl(nn::Linear table, bool says_so) : table_(std::move(table)) {
    if (says_so) reads_parameter(table_->weight());
  }
  Tensor forward(const Tensor& x) const { return linear(x, table_->weight()); }

 private:
  nn::Linear table_;  // registered by another
};
TESSERA_MODULE(HeadOverTable);

class ReadsAnother : public UserModule {
 public:
  explicit ReadsAnother(bool says_so) {
    table_ = register_module("table", nn::Linear(features, features));
    head_ = register_module("head", HeadOverTable(table_, says_so));
  }
  Tensor forward(const Tensor& x) override { return head_(relu(table_(x))); }

 private:
  nn::Linear table_;
  HeadOverTable head_;
};

// Without the declaration the reader may run when the owner's parameters are resharded.
TEST(UserModuleParts, TheErrorForAnUndeclaredReaderNamesReadsParameter) {
  const TrainingCase what{.micro_batches = 2, .max_norm = 0.1};
  const auto train_reader = [&](Strategy strategy, bool says_so) {
    const ShardingOptions options{.strategy = strategy,
                                  .wrap = WrapPolicy::list({"table", "head"})};
    return testing::train_ranks(2, options, what,
                                [=](double) { return std::make_unique<ReadsAnother>(says_so); });
  };
  EXPECT_EQ(
      testing::message_of<std::logic_error>(
          [&] { (void)train_reader(Strategy::full_shard, false); }),
      "unit table is sharded now: its parameters can be read inside their module's forward "
      "and backward, or within an unsharded(model) scope; a module whose forward reads "
      "another's parameter must declare it in its constructor, by reads_parameter(tensor) (in "
      "head, of class HeadOverTable)");
  EXPECT_TRUE(
      same_bits(train_reader(Strategy::no_shard, true), train_reader(Strategy::full_shard, true)));
}

// Parameters created on `meta` get the values that they would have had, on any number of ranks.
template <class Module>
void expect_meta_is_materialised() {
  std::map<std::string, std::vector<double>> expected;
  for (const int world : {1, 2, 3, 4}) {
    for (const bool meta : {false, true}) {
      for (const Strategy strategy : {Strategy::no_shard, Strategy::full_shard}) {
        Collected collected;
        launch(world, [&](Context& context) {
          manual_seed(23);
          std::unique_ptr<Module> net;
          {
            const DeviceGuard device(meta ? Device::meta() : Device::cpu());
            net = std::make_unique<Module>();
          }
          const ShardedModel model =
              fully_shard(*net, context, {.strategy = strategy, .wrap = WrapPolicy::list({"fc1"})});
          collected.add(model);
        });
        if (expected.empty()) expected = collected.values();
        EXPECT_EQ(collected.values(), expected) << world << " ranks, meta " << meta;
      }
    }
  }
}

TEST(UserModuleParts, MetaIsMaterialised) {
  expect_meta_is_materialised<Net>();
  expect_meta_is_materialised<RootParameters>();
  expect_meta_is_materialised<MixedDTypes>();
}

}  // namespace
}  // namespace tessera

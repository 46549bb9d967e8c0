// The modules that become units, and the unit that owns each parameter.
#include "sharding/policy/wrap_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

class LayerImpl : public nn::Module {
 public:
  LayerImpl() {
    register_module("a", nn::Linear(4, 4));  // 20 parameters
    register_module("b", nn::Linear(4, 8));  // 40
  }
  static Tensor forward(const Tensor& x) { return x; }
};
TESSERA_MODULE(Layer);

class FusedImpl : public nn::Module {
 public:
  FusedImpl() { register_module("inner", nn::Linear(4, 8)); }
  static Tensor forward(const Tensor& x) { return x; }
  [[nodiscard]] bool is_indivisible() const override { return true; }
};
TESSERA_MODULE(Fused);

class HeadImpl : public nn::Module {
 public:
  explicit HeadImpl(const Tensor& table) { register_parameter("weight", table); }
  static Tensor forward(const Tensor& x) { return x; }
};
TESSERA_MODULE(Head);

// embed.weight is also head.weight.
class Model : public nn::Module {
 public:
  Model() {
    const auto embed = register_module("embed", nn::Embedding(10, 4));
    std::vector<Layer> layers;
    for (int i = 0; i < 2; ++i) layers.emplace_back(std::make_shared<LayerImpl>());
    register_module("layers", nn::ModuleList<Layer>(std::move(layers)));
    register_module("fused", Fused(std::make_shared<FusedImpl>()));
    register_module("head", Head(embed->weight()));
    register_parameter("scale", nn::make_parameter({1}, nn::constant(1)));
  }
  static Tensor forward(const Tensor& x) { return x; }
};

std::vector<std::string> names(nn::Module& root, const WrapPolicy& policy) {
  std::vector<std::string> result;
  for (const auto& unit : choose_units(root, policy)) result.push_back(unit.name);
  return result;
}

std::vector<std::vector<std::string>> owners(nn::Module& root, const WrapPolicy& policy) {
  std::vector<std::vector<std::string>> result;
  for (const auto& unit : choose_units(root, policy)) {
    result.emplace_back();
    for (const auto& parameter : unit.parameters) result.back().push_back(parameter.name);
  }
  return result;
}

std::string error_of(nn::Module& root, const WrapPolicy& policy) {
  return testing::error_of([&] { return choose_units(root, policy); }, ErrorCode::configuration);
}

using Names = std::vector<std::string>;

TEST(WrapPolicy, None) {
  Model model;
  EXPECT_EQ(names(model, WrapPolicy::none()), Names{""});
  EXPECT_EQ(owners(model, WrapPolicy::none())[0].size(), 1u + 1 + 2 * 4 + 2);
}

TEST(WrapPolicy, Transformer) {
  Model model;
  EXPECT_EQ(names(model, WrapPolicy::transformer({"Layer"})), (Names{"", "layers.0", "layers.1"}));
  EXPECT_EQ(names(model, WrapPolicy::transformer({"Layer", "Fused"})),
            (Names{"", "layers.0", "layers.1", "fused"}));
  const auto owned = owners(model, WrapPolicy::transformer({"Layer"}));
  EXPECT_EQ(owned[0], (Names{"scale", "embed.weight", "fused.inner.weight", "fused.inner.bias"}));
  EXPECT_EQ(owned[1], (Names{"layers.0.a.weight", "layers.0.a.bias", "layers.0.b.weight",
                             "layers.0.b.bias"}));
}

TEST(WrapPolicy, TransformerOfTheRootsOwnClassIsTheRoot) {
  Model model;
  EXPECT_EQ(names(model, WrapPolicy::transformer({"Model"})), Names{""});
}

TEST(WrapPolicy, NestedUnits) {
  Model model;
  const auto policy = WrapPolicy::list({"layers.0", "layers.0.b"});
  EXPECT_EQ(names(model, policy), (Names{"", "layers.0", "layers.0.b"}));
  const auto owned = owners(model, policy);
  EXPECT_EQ(owned[1], (Names{"layers.0.a.weight", "layers.0.a.bias"}));
  EXPECT_EQ(owned[2], (Names{"layers.0.b.weight", "layers.0.b.bias"}));
}

// Innermost first: b reaches 40 by itself; the rest of a layer, 20, does not, and the list of
// layers has no forward that would gather it.
TEST(WrapPolicy, Size) {
  Model model;
  const Names units = names(model, WrapPolicy::size(40));
  const auto is_unit = [&](const std::string& name) {
    return std::find(units.begin(), units.end(), name) != units.end();
  };
  EXPECT_TRUE(is_unit("layers.0.b"));
  EXPECT_FALSE(is_unit("layers"));
  EXPECT_FALSE(is_unit("layers.0"));
  EXPECT_FALSE(is_unit("embed"));  // its table is also the head's, so it belongs to the root
  EXPECT_TRUE(is_unit("fused"));   // as a whole: no module inside it can be a unit
  EXPECT_FALSE(is_unit("fused.inner"));
  EXPECT_EQ(names(model, WrapPolicy::size(1'000'000)), Names{""});
}

TEST(WrapPolicy, List) {
  Model model;
  EXPECT_EQ(names(model, WrapPolicy::list({"head", "layers.1"})), (Names{"", "layers.1", "head"}));
  EXPECT_EQ(names(model, WrapPolicy::list({""})), Names{""});
  EXPECT_EQ(names(model, WrapPolicy::list({})), Names{""});
}

// Every parameter belongs to exactly one unit, under every policy.
TEST(WrapPolicy, EveryParameterOnce) {
  Model model;
  for (const auto& policy :
       {WrapPolicy::none(), WrapPolicy::transformer({"Layer"}), WrapPolicy::size(1),
        WrapPolicy::size(30), WrapPolicy::list({"embed", "layers.0.a", "layers.1"})}) {
    std::multiset<std::string> all;
    for (const auto& owned : owners(model, policy)) all.insert(owned.begin(), owned.end());
    std::multiset<std::string> expected;
    for (const auto& parameter : model.named_parameters()) expected.insert(parameter.name);
    EXPECT_EQ(all, expected);
  }
}

TEST(WrapPolicy, TiedParametersGoToTheInnermostUnitAroundAllPlaces) {
  Model model;
  // Neither the embedding's nor the head's unit contains both: the root owns it.
  auto owned = owners(model, WrapPolicy::list({"embed", "head"}));
  EXPECT_EQ(owned[0].front(), "scale");
  EXPECT_EQ(owned[0].at(1), "embed.weight");
  EXPECT_TRUE(owned[1].empty());

  // A unit that contains both modules owns it.
  class OuterModel : public nn::Module {
   public:
    OuterModel() { register_module("model", nn::ModuleHandle<Model>(std::make_shared<Model>())); }
  } outer;
  owned = owners(outer, WrapPolicy::list({"model", "model.embed", "model.head"}));
  EXPECT_TRUE(owned[0].empty());
  EXPECT_EQ(owned[1].at(1), "model.embed.weight");
  EXPECT_TRUE(owned[2].empty());
  EXPECT_TRUE(owned[3].empty());
}

class OnceMoreImpl : public nn::Module {
 public:
  explicit OnceMoreImpl(const nn::Linear& shared) {
    register_module("own", nn::Linear(4, 4));
    register_module("shared", shared);
  }
  static Tensor forward(const Tensor& x) { return x; }
};
TESSERA_MODULE(OnceMore);

// A module that is registered in two others.
class SharedModule : public nn::Module {
 public:
  SharedModule() {
    const nn::Linear shared(4, 8);
    register_module("first", OnceMore(shared));
    register_module("second", OnceMore(shared));
  }
};

TEST(WrapPolicy, AModuleInTwoUnitsBelongsToTheInnermostUnitAroundBoth) {
  SharedModule net;
  auto owned = owners(net, WrapPolicy::list({"first", "second"}));
  EXPECT_EQ(owned[0], (Names{"first.shared.weight", "first.shared.bias"}));
  EXPECT_EQ(owned[1], (Names{"first.own.weight", "first.own.bias"}));
  EXPECT_EQ(owned[2], (Names{"second.own.weight", "second.own.bias"}));
  // A shared module that is itself a unit owns its parameters, wherever it is registered.
  owned = owners(net, WrapPolicy::list({"first", "first.shared", "second"}));
  EXPECT_TRUE(owned[0].empty());
  EXPECT_EQ(owned[2], (Names{"first.shared.weight", "first.shared.bias"}));
  // By size: 40 in the shared module, 20 in each of the two others.
  EXPECT_EQ(names(net, WrapPolicy::size(30)), (Names{"", "first.shared"}));
  EXPECT_EQ(names(net, WrapPolicy::size(20)),
            (Names{"", "first.own", "first.shared", "second.own"}));
}

// The same for a table that another module reads without registering it.
TEST(WrapPolicy, AParameterThatAnotherModuleReadsBelongsToAUnitAroundBoth) {
  class Reader : public nn::Module {
   public:
    Reader() {
      const auto table = register_module("table", nn::Embedding(10, 4));
      register_module("layer", nn::Linear(4, 8));
      reads_parameter(table->weight());
    }
    static Tensor forward(const Tensor& x) { return x; }
  };
  class Around : public nn::Module {
   public:
    Around() { register_module("model", nn::ModuleHandle<Reader>(std::make_shared<Reader>())); }
  } net;
  EXPECT_EQ(names(net, WrapPolicy::size(40)), (Names{"", "model", "model.layer"}));
  const auto owned = owners(net, WrapPolicy::list({"model", "model.table"}));
  EXPECT_EQ(owned[1].front(), "model.table.weight");
  EXPECT_TRUE(owned[2].empty());
}

// "layers.1" does not contain "layers.10".
TEST(WrapPolicy, NamesArePathsNotPrefixes) {
  class Many : public nn::Module {
   public:
    Many() {
      std::vector<nn::Linear> layers;
      for (int i = 0; i < 11; ++i) layers.emplace_back(2, 2);
      register_module("layers", nn::ModuleList<nn::Linear>(std::move(layers)));
    }
  } many;
  const auto owned = owners(many, WrapPolicy::list({"layers.1"}));
  EXPECT_EQ(owned[1], (Names{"layers.1.weight", "layers.1.bias"}));
}

TEST(WrapPolicy, RefusesUnknownModules) {
  Model model;
  EXPECT_EQ(error_of(model, WrapPolicy::transformer({"Block"})),
            "TRANSFORMER_BASED_WRAP: no module of class Block in the model; its classes are "
            "Embedding, Fused, Head, Layer, Linear, Model, ModuleList");
  EXPECT_EQ(error_of(model, WrapPolicy::transformer({})),
            "TRANSFORMER_BASED_WRAP needs the class name of the transformer's layer");
  const std::string missing = error_of(model, WrapPolicy::list({"layers.2"}));
  EXPECT_NE(missing.find("no module \"layers.2\" in the model; its modules are"),
            std::string::npos);
  EXPECT_NE(missing.find("layers.1.b"), std::string::npos);
  EXPECT_EQ(error_of(model, WrapPolicy::size(0)),
            "SIZE_BASED_WRAP needs a positive number of parameters, got 0");
}

TEST(WrapPolicy, RefusesToCutBelowFusedOperations) {
  Model model;
  EXPECT_EQ(error_of(model, WrapPolicy::list({"fused.inner"})),
            "module fused.inner cannot be a unit: a module around it uses its parameters in a "
            "fused operation; wrap that one");
  EXPECT_NO_THROW(choose_units(model, WrapPolicy::list({"fused"})));
}

TEST(WrapPolicy, RefusesModulesWithoutAForward) {
  Model model;
  const std::string refusal =
      "module layers (ModuleList) cannot be a unit: it has no forward that would be called; wrap "
      "the modules in it";
  EXPECT_EQ(error_of(model, WrapPolicy::list({"layers"})), refusal);
  EXPECT_EQ(error_of(model, WrapPolicy::transformer({"ModuleList"})), refusal);
}

}  // namespace
}  // namespace tessera

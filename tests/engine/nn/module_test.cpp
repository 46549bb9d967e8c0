// Modules: names, tying, replacement, class names, and the order of hooks in forward and backward.
#include "engine/nn/module.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/nn/module_list.h"
#include "engine/nn/sequential.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Lines = std::vector<std::string>;

class GateImpl : public nn::Module {
 public:
  explicit GateImpl(std::int64_t width) {
    register_parameter("scale", nn::make_parameter({width}, nn::constant(1)));
    inner_ = register_module("inner", nn::Linear(width, width));
  }
  Tensor forward(const Tensor& x) const { return inner_(x) * parameter("scale"); }
  nn::Linear& inner() { return inner_; }

 private:
  nn::Linear inner_;
};
TESSERA_MODULE(Gate);

struct NamedNet : nn::Module {
  explicit NamedNet(std::int64_t width = 3)
      : table(register_module("table", nn::Embedding(5, width))),
        gates(register_module("gates",
                              nn::ModuleList<Gate>(std::vector<Gate>{Gate(width), Gate(width)}))),
        norm(register_module("norm", nn::LayerNorm(width))) {}
  Tensor forward(const Tensor& ids) const {
    Tensor x = table(ids);
    for (const Gate& gate : *gates) x = gate(x);
    return linear(norm(x), table->weight());  // tied
  }
  nn::Embedding table;
  nn::ModuleList<Gate> gates;
  nn::LayerNorm norm;
};

Lines names_of(const nn::Module& module) {
  Lines names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.name);
  return names;
}

const Tensor& ids() {
  static const Tensor tensor = Tensor::from(std::vector<std::int32_t>{4, 1, 1}, {1, 3});
  return tensor;
}

TEST(Module, ParametersAreNamedDepthFirstInTheOrderOfRegistration) {
  const NamedNet net;
  EXPECT_EQ(names_of(net), (Lines{"table.weight", "gates.0.scale", "gates.0.inner.weight",
                                  "gates.0.inner.bias", "gates.1.scale", "gates.1.inner.weight",
                                  "gates.1.inner.bias", "norm.weight", "norm.bias"}));
}

TEST(Module, ModulesAreNamedWithTheRootFirst) {
  NamedNet net;
  Lines names;
  Lines classes;
  for (const auto& [name, module] : net.named_modules()) {
    names.push_back(name);
    classes.push_back(module->class_name());
  }
  EXPECT_EQ(names, (Lines{"", "table", "gates", "gates.0", "gates.0.inner", "gates.1",
                          "gates.1.inner", "norm"}));
  EXPECT_EQ(classes, (Lines{"NamedNet", "Embedding", "ModuleList", "Gate", "Linear", "Gate",
                            "Linear", "LayerNorm"}));
}

TEST(Module, TiedParametersAndSharedModulesComeOnce) {
  struct Tied : nn::Module {
    Tied() {
      const Tensor weight = register_parameter("weight", nn::make_parameter({2}, nn::constant(1)));
      register_parameter("again", weight);
      const nn::Linear shared(2, 2);
      register_module("first", shared);
      register_module("second", shared);
    }
  } net;
  EXPECT_EQ(names_of(net), (Lines{"weight", "first.weight", "first.bias"}));
  EXPECT_EQ(net.named_modules().size(), 2u);
}

TEST(Module, ReplacedParametersAreUsedAtEveryRegistration) {
  struct Tied : nn::Module {
    Tied() {
      const Tensor weight = register_parameter("weight", nn::make_parameter({2}, nn::constant(1)));
      register_parameter("again", weight);
      reads_parameter(weight);
    }
    Tensor forward() const { return parameter("weight") * parameter("again"); }
  } net;
  const Tensor replacement = Tensor::full({2}, 3).set_requires_grad(true);
  net.replace_own_parameter(net.named_parameters()[0].tensor, replacement);
  EXPECT_EQ(names_of(net), (Lines{"weight"}));
  EXPECT_EQ(net.parameters_read().front().impl(), replacement.impl());
  EXPECT_EQ(net.forward().to_vector(), (std::vector<double>{9, 9}));
  sum(net.forward()).backward();
  EXPECT_EQ(replacement.grad().to_vector(), (std::vector<double>{6, 6}));
}

struct TemplateImpl final : nn::Module {
  template <class T>
  T forward(T x) const {
    return x;
  }
};

TEST(Module, KnowsModulesThatHaveAForward) {
  struct NoForwardImpl : nn::Module {};
  struct OverloadedImpl : nn::Module {
    Tensor forward(const Tensor& x) const { return x; }
    Tensor forward(const Tensor& x, int) const { return x; }
  };
  struct DerivedImpl : OverloadedImpl {};
  struct Kinds : nn::Module {
    Kinds() {
      register_module("none", nn::ModuleHandle<NoForwardImpl>(std::make_shared<NoForwardImpl>()));
      register_module("two", nn::ModuleHandle<OverloadedImpl>(std::make_shared<OverloadedImpl>()));
      register_module("any", nn::ModuleHandle<TemplateImpl>(std::make_shared<TemplateImpl>()));
      register_module("its_base", nn::ModuleHandle<DerivedImpl>(std::make_shared<DerivedImpl>()));
      register_module("list", nn::ModuleList<nn::Linear>(std::vector<nn::Linear>{}));
    }
  } net;
  Lines with_forward;
  for (const auto& [name, module] : net.named_modules()) {
    if (module->has_forward()) with_forward.push_back(name);
  }
  EXPECT_EQ(with_forward, (Lines{"two", "any", "its_base"}));
}

TEST(Module, TrainingModeReachesAllSubmodules) {
  NamedNet net;
  net.eval();
  for (const auto& [name, module] : net.named_modules())
    EXPECT_FALSE(module->is_training()) << name;
  net.train();
  for (const auto& [name, module] : net.named_modules()) EXPECT_TRUE(module->is_training()) << name;
}

TEST(Module, RefusesBadNamesDuplicateNamesAndEmptyModules) {
  struct Open : nn::Module {
    using nn::Module::register_module;
    using nn::Module::register_parameter;
    const Tensor& find(const char* name) const { return parameter(name); }
  } net;
  const Tensor x = Tensor::full({1}, 1);
  EXPECT_THROW(net.register_parameter("a.b", x), std::logic_error);
  EXPECT_THROW(net.register_parameter("", x), std::logic_error);
  EXPECT_THROW(net.register_parameter("a", Tensor{}), std::logic_error);
  net.register_parameter("a", x);
  EXPECT_THROW(net.register_parameter("a", x), std::logic_error);
  EXPECT_THROW(net.register_module("m", nn::Linear()), std::logic_error);
  net.register_module("m", nn::Linear(1, 1));
  EXPECT_THROW(net.register_module("m", nn::Linear(1, 1)), std::logic_error);
  EXPECT_THROW((void)net.find("b"), std::logic_error);
}

TEST(Module, ParametersTakeTheThreadsDefaults) {
  EXPECT_EQ(nn::default_parameter_dtype(), float32);
  {
    const nn::ParameterDTypeGuard guard(bfloat16);
    EXPECT_EQ(nn::Linear(2, 2)->weight().dtype(), bfloat16);
  }
  EXPECT_EQ(nn::Linear(2, 2)->weight().dtype(), float32);
  EXPECT_THROW(nn::ParameterDTypeGuard{int32}, std::logic_error);
  const DeviceGuard meta(Device::meta());
  EXPECT_TRUE(nn::Linear(2, 2)->weight().is_meta());
}

// Records "name event" for every hook of the modules that `wanted` names.
Lines trace(NamedNet& net, const Lines& wanted, const std::function<void()>& run) {
  Lines lines;
  for (const auto& [name, module] : net.named_modules()) {
    if (std::find(wanted.begin(), wanted.end(), name) == wanted.end()) continue;
    const auto say = [&lines, name = name](const char* what) {
      return [&lines, line = name + " " + what](const ModuleCall&) { lines.push_back(line); };
    };
    auto hooks = std::make_shared<ModuleHooks>();
    hooks->before_forward = say("F{");
    hooks->after_forward = say("}F");
    hooks->before_backward = say("B{");
    hooks->after_backward = say("}B");
    module->set_hooks(hooks);
  }
  run();
  for (const auto& [name, module] : net.named_modules()) module->set_hooks(nullptr);
  return lines;
}

TEST(ModuleHooks, NestAsTheCallsDoAndBackwardMirrorsForward) {
  NamedNet net;
  const Lines lines = trace(net, {"table", "gates.0", "gates.0.inner", "gates.1", "norm"},
                            [&] { sum(net.forward(ids())).backward(); });
  EXPECT_EQ(lines,
            (Lines{"table F{",         "table }F",         "gates.0 F{",       "gates.0.inner F{",
                   "gates.0.inner }F", "gates.0 }F",       "gates.1 F{",       "gates.1 }F",
                   "norm F{",
                   "norm }F",  //
                   "norm B{",          "norm }B",          "gates.1 B{",       "gates.1 }B",
                   "gates.0 B{",       "gates.0.inner B{", "gates.0.inner }B", "gates.0 }B",
                   "table B{",  // although its input, the ids, has no gradient
                   "table }B"}));
}

TEST(ModuleHooks, TwoCallsOfOneModuleAreTwoRegions) {
  NamedNet net;
  const Gate& gate = (*net.gates)[0];
  const Tensor x = Tensor::full({1, 3}, 1);
  const Lines lines = trace(net, {"gates.0"}, [&] { sum(gate(gate(x))).backward(); });
  EXPECT_EQ(lines, (Lines{"gates.0 F{", "gates.0 }F", "gates.0 F{", "gates.0 }F",  //
                          "gates.0 B{", "gates.0 }B", "gates.0 B{", "gates.0 }B"}));
}

TEST(ModuleHooks, ModulesWithoutReachedNodesAreNotEntered) {
  NamedNet net;
  const Tensor x = Tensor::full({1, 3}, 1).set_requires_grad(true);
  const Lines lines = trace(net, {"gates.0", "gates.1"}, [&] {
    const Tensor unused = (*net.gates)[0](x);
    sum((*net.gates)[1](x)).backward();
    const NoGradGuard no_grad;
    (void)(*net.gates)[0](x);
  });
  EXPECT_EQ(lines, (Lines{"gates.0 F{", "gates.0 }F", "gates.1 F{", "gates.1 }F", "gates.1 B{",
                          "gates.1 }B", "gates.0 F{", "gates.0 }F"}));
}

TEST(ModuleHooks, GradientsOfAModuleAreCompleteAfterItsBackward) {
  NamedNet net;
  auto hooks = std::make_shared<ModuleHooks>();
  bool complete = false;
  hooks->after_backward = [&](const ModuleCall&) {
    complete = true;
    for (const auto& parameter : (*net.gates)[1]->named_parameters()) {
      complete = complete && parameter.tensor.grad().defined();
    }
    EXPECT_FALSE((*net.gates)[0]->inner()->weight().grad().defined());
  };
  (*net.gates)[1]->set_hooks(hooks);
  sum(net.forward(ids())).backward();
  EXPECT_TRUE(complete);
}

// The least of a few runs: other work on the machine adds to them.
double seconds_to_register(int modules) {
  double least = 1e9;
  for (int run = 0; run < 3; ++run) {
    const std::vector<Gate> gates(static_cast<std::size_t>(modules), Gate(2));
    const std::clock_t begin = std::clock();
    const nn::ModuleList<Gate> list(gates);
    const std::clock_t end = std::clock();
    least = std::min(least, static_cast<double>(end - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

// Eight times as many take some eight times as long, and 64 times where each is compared with all.
TEST(Module, ManyAreRegisteredInProportionalTime) {
  EXPECT_LT(seconds_to_register(32'000), 24 * std::max(seconds_to_register(4'000), 1e-3));
}

TEST(ModuleHooks, AnErrorInForwardClosesTheRegion) {
  NamedNet net;
  const Lines lines = trace(net, {"gates.0"}, [&] {
    EXPECT_THROW((*net.gates)[0](Tensor::full({1, 2}, 1)), std::logic_error);
    EXPECT_EQ(current_module_call(), nullptr);
  });
  EXPECT_EQ(lines, (Lines{"gates.0 F{"}));
}

TEST(Sequential, CallsModulesAndFunctionsAndNamesModulesByPlace) {
  manual_seed(2);
  nn::Linear first(3, 4), last(4, 2);
  const nn::Sequential both(
      first, [](const Tensor& x) { return relu(x); }, last);
  const Tensor x = Tensor::from({1.f, -2.f, 3.f}, {1, 3});
  EXPECT_EQ(both(x).to_vector(), last(relu(first(x))).to_vector());
  EXPECT_EQ(names_of(*both), (Lines{"0.weight", "0.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(both->size(), 3u);
  int calls = 0;
  const HookHandle hook =
      last->register_forward_pre_hook([&](nn::Module&, std::span<const Tensor>) { ++calls; });
  (void)both(x);
  EXPECT_EQ(calls, 1);
}

TEST(ModuleDict, HasModulesByKeyInOrder) {
  const nn::ModuleDict<nn::Linear> heads(std::vector<std::pair<std::string, nn::Linear>>{
      {"words", nn::Linear(3, 4)}, {"classes", nn::Linear(3, 2)}});
  EXPECT_EQ(heads->size(), 2u);
  EXPECT_EQ((*heads)["classes"]->weight().size(0), 2);
  EXPECT_EQ(names_of(*heads),
            (Lines{"words.weight", "words.bias", "classes.weight", "classes.bias"}));
  try {
    (void)(*heads)["class"];
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_NE(
        std::string(error.what()).find("a dictionary of 2 modules has none with the key \"class\""),
        std::string::npos);
  }
}

TEST(Module, RegistersAnyLeafAsAParameter) {
  struct Net : nn::Module {
    using nn::Module::register_parameter;
  } net;
  EXPECT_TRUE(net.register_parameter("ones", Tensor::full({2}, 1)).requires_grad());
  EXPECT_FALSE(net.register_parameter("codes", Tensor::zeros({2}, uint8)).requires_grad());
  Tensor frozen = nn::make_parameter({2}, nn::constant(1));
  frozen.set_requires_grad(false);
  EXPECT_FALSE(net.register_parameter("frozen", frozen).requires_grad());
  const std::string message = testing::misuse_of([&] {
    net.register_parameter("scaled", Tensor::full({2}, 1).set_requires_grad(true) * 2.0);
  });
  EXPECT_NE(message.find("parameter scaled [2] of "), std::string::npos) << message;
  EXPECT_NE(message.find("is the result of an op"), std::string::npos) << message;
}

}  // namespace
}  // namespace tessera

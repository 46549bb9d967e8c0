// Users' hooks: on the calls of a module, and on the gradient of an op's result.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/recompute.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;
using Inputs = std::span<const Tensor>;
using Outputs = std::span<Tensor>;

class DoubleImpl : public nn::Module {
 public:
  Tensor forward(const Tensor& x) const { return x * 2.0; }
};
TESSERA_MODULE(Double);

Double make_double() {
  return Double(std::make_shared<DoubleImpl>());
}

TEST(ForwardHooks, SeeInputsAndOutputsInTheOrderOfRegistration) {
  const Double module = make_double();
  std::vector<std::string> lines;
  const auto note = [&](const char* what) { lines.emplace_back(what); };
  module->register_forward_hook([&](nn::Module& self, Inputs inputs, Outputs outputs) {
    note("after");
    EXPECT_EQ(&self, module.pointer().get());
    EXPECT_EQ(inputs[0].item(), 3);
    EXPECT_EQ(outputs[0].item(), 6);
  });
  module->register_forward_pre_hook([&](nn::Module& self, Inputs inputs) {
    note("before");
    EXPECT_EQ(self.class_name(), "Double");
    EXPECT_EQ(inputs.size(), 1u);
    EXPECT_EQ(inputs[0].item(), 3);
  });
  HookHandle second =
      module->register_forward_hook([&](nn::Module&, Inputs, Outputs) { note("after 2"); });
  const Tensor x = Tensor::full({1}, 3);
  EXPECT_EQ(module(x).item(), 6);
  EXPECT_EQ(lines, (std::vector<std::string>{"before", "after", "after 2"}));
  second.remove();
  second.remove();
  lines.clear();
  (void)module(x);
  EXPECT_EQ(lines, (std::vector<std::string>{"before", "after"}));
  lines.clear();
  (void)module->forward(x);
  EXPECT_TRUE(lines.empty());
}

TEST(ForwardHooks, MayReplaceTheOutputAndGradientsFlowThroughTheReplacement) {
  const Double module = make_double();
  module->register_forward_hook(
      [](nn::Module&, Inputs, Outputs outputs) { outputs[0] = outputs[0] * 5.0; });
  module->register_forward_hook(
      [](nn::Module&, Inputs, Outputs outputs) { outputs[0] = outputs[0] + 1.0; });
  const Tensor x = Tensor::full({1}, 3).set_requires_grad(true);
  const Tensor y = module(x);
  EXPECT_EQ(y.item(), 31);
  y.backward();
  EXPECT_EQ(x.grad().item(), 10);
}

struct Named {
  Tensor tensor;
};
class ManyImpl : public nn::Module {
 public:
  std::tuple<Tensor, std::vector<Tensor>, int> forward(const std::pair<Tensor, int>& first,
                                                       std::vector<Tensor> more,
                                                       const std::optional<std::string>& /*unused*/,
                                                       const Named& unseen) const {
    return {first.first + unseen.tensor, std::move(more), first.second};
  }
};
TESSERA_MODULE(Many);

TEST(ForwardHooks, SeeTensorsInPairsTuplesAndVectors) {
  const Many many(std::make_shared<ManyImpl>());
  const auto values_of = [](auto tensors) {
    Doubles values;
    for (const Tensor& tensor : tensors) values.push_back(tensor.item());
    return values;
  };
  many->register_forward_hook([&](nn::Module&, Inputs inputs, Outputs outputs) {
    EXPECT_EQ(values_of(inputs), (Doubles{1, 2, 3}));
    EXPECT_EQ(values_of(outputs), (Doubles{5, 2, 3}));
    outputs[2] = Tensor::full({1}, 9);
  });
  const auto one = [](double value) { return Tensor::full({1}, value); };
  const auto [sum, more, number] = many(std::pair(one(1), 7), std::vector<Tensor>{one(2), one(3)},
                                        std::optional<std::string>(), Named{one(4)});
  EXPECT_EQ(sum.item(), 5);
  EXPECT_EQ(values_of(more), (Doubles{2, 9}));
  EXPECT_EQ(number, 7);
}

TEST(ForwardHooks, MayRemoveThemselvesAndAddOthers) {
  const Double module = make_double();
  int once = 0, added = 0;
  HookHandle handle = module->register_forward_hook([&](nn::Module& self, Inputs, Outputs) {
    ++once;
    handle.remove();
    self.register_forward_hook([&](nn::Module&, Inputs, Outputs) { ++added; });
  });
  for (int i = 0; i < 3; ++i) (void)module(Tensor::full({1}, 1));
  EXPECT_EQ(once, 1);
  EXPECT_EQ(added, 2);
  EXPECT_TRUE(module->has_forward_hooks());
}

TEST(ForwardHooks, AHandleMayOutliveItsModule) {
  HookHandle handle;
  handle.remove();
  {
    const Double module = make_double();
    handle = module->register_forward_hook([](nn::Module&, Inputs, Outputs) {});
  }
  handle.remove();
}

TEST(ForwardHooks, RunAgainWhenTheModuleRunsAgain) {
  const Double module = make_double();
  std::vector<bool> in_backward;
  module->register_forward_hook([&](nn::Module&, Inputs, Outputs outputs) {
    in_backward.push_back(autograd::in_backward());
    outputs[0] = tanh(outputs[0]);
  });
  const auto gradient = [&] {
    const Tensor x = Tensor::full({1}, 0.25).set_requires_grad(true);
    sum(module(x) * 3.0).backward();
    return x.grad().item();
  };
  const double wanted = gradient();
  module->set_recompute(RecomputeOptions{});
  EXPECT_EQ(gradient(), wanted);
  EXPECT_EQ(in_backward, (std::vector<bool>{false, false, true}));
}

TEST(ForwardHooks, SeeTensorsInThePrecisionOutsideTheModule) {
  const Double module = make_double();
  module->set_precision(nn::ModulePrecision{float32, bfloat16});
  module->register_forward_hook([](nn::Module&, Inputs inputs, Outputs outputs) {
    EXPECT_EQ(inputs[0].dtype(), bfloat16);
    EXPECT_EQ(outputs[0].dtype(), bfloat16);
  });
  EXPECT_EQ(module(Tensor::full({1}, 1, bfloat16)).dtype(), bfloat16);
}

// Hooks can read parameters that exist only during the module's calls, like those of a sharded
// module.
TEST(ForwardHooks, RunInsideTheModulesCall) {
  const Double module = make_double();
  bool inside = false;
  auto hooks = std::make_shared<ModuleHooks>();
  hooks->before_forward = [&](const ModuleCall&) { inside = true; };
  hooks->after_forward = [&](const ModuleCall&) { inside = false; };
  module->set_hooks(hooks);
  int seen = 0;
  module->register_forward_pre_hook([&](nn::Module&, Inputs) { seen += inside ? 1 : 0; });
  module->register_forward_hook([&](nn::Module&, Inputs, Outputs) { seen += inside ? 1 : 0; });
  (void)module(Tensor::full({1}, 1));
  EXPECT_EQ(seen, 2);
  EXPECT_FALSE(inside);
}

TEST(ForwardHooks, AnExceptionEndsTheCall) {
  const Double module = make_double();
  HookHandle handle = module->register_forward_pre_hook(
      [](nn::Module&, Inputs) { throw std::runtime_error("stop"); });
  EXPECT_THROW((void)module(Tensor::full({1}, 1)), std::runtime_error);
  EXPECT_EQ(current_module_call(), nullptr);
  handle.remove();
  EXPECT_EQ(module(Tensor::full({1}, 1)).item(), 2);
}

std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(ForwardHooks, OfAModuleThatIsNotCalledAreRefused) {
  const Double module = make_double();
  module->register_forward_hook([](nn::Module&, Inputs, Outputs) {});
  EXPECT_EQ(refused([&] {
              (void)module.call([](DoubleImpl&) { return 1; });
            }).find("Double has forward hooks, and a module around it computes with its"),
            0u);
  EXPECT_NE(refused([&] { module->register_forward_hook({}); }).find("an empty function"),
            std::string::npos);
  EXPECT_NE(refused([&] { module->register_forward_pre_hook({}); }).find("an empty function"),
            std::string::npos);
}

TEST(ForwardHooks, ASchedulesHooksAreNotReplaced) {
  const Double module = make_double();
  auto hooks = std::make_shared<ModuleHooks>();
  hooks->owner = "a ShardedModel";
  module->set_hooks(hooks);
  const std::string message = refused([&] { module->set_hooks(std::make_shared<ModuleHooks>()); });
  EXPECT_EQ(message.find("Double has the hooks of a ShardedModel already"), 0u) << message;
  EXPECT_NE(message.find("register_forward_hook()"), std::string::npos);
  EXPECT_EQ(module->hooks(), hooks);
  module->set_hooks(nullptr);
  module->set_hooks(std::make_shared<ModuleHooks>());
}

TEST(GradientHooks, SeeTheWholeGradientAndMayReplaceIt) {
  const Tensor x = Tensor::from({1.f, 2.f}, {2}).set_requires_grad(true);
  const auto run = [&](bool doubled) {
    Tensor(x).zero_grad();
    const Tensor y = x * 3.0;
    Doubles seen;
    y.register_hook([&](const Tensor& gradient) { seen = gradient.to_vector(); });
    if (doubled) y.register_hook([](const Tensor& gradient) { return gradient * 2.0; });
    HookHandle removed = y.register_hook([](const Tensor&) { FAIL(); });
    removed.remove();
    (sum(y * 4.0) + sum(y)).backward();
    EXPECT_EQ(seen, (Doubles{5, 5}));
    return x.grad().to_vector();
  };
  EXPECT_EQ(run(false), (Doubles{15, 15}));
  EXPECT_EQ(run(true), (Doubles{30, 30}));
}

TEST(GradientHooks, OfOneOfSeveralResults) {
  const Tensor x = Tensor::from({1.f, 2.f}, {1, 2}).set_requires_grad(true);
  const auto [total, normalised] = add_rms_norm(x, x, {});
  int of_total = 0, of_normalised = 0;
  total.register_hook([&](const Tensor&) { ++of_total; });
  normalised.register_hook([&](const Tensor&) { ++of_normalised; });
  sum(total).backward();
  EXPECT_EQ(of_total, 1);
  EXPECT_EQ(of_normalised, 0);
}

// Tensors of the first run do not get whole gradients: the hook counts once, in the second run.
TEST(GradientHooks, InARecomputedFunctionRunOnce) {
  const Tensor x = Tensor::from({1.f}, {1}).set_requires_grad(true);
  Doubles inside, outside;
  const Tensor y = recompute(
      [&](const Tensor& in) {
        const Tensor h = in * 3.0;
        h.register_hook([&](const Tensor& gradient) {
          inside.push_back(gradient.item());
          return gradient * 10.0;
        });
        return h * 2.0 + h;
      },
      x);
  y.register_hook([&](const Tensor& gradient) { outside.push_back(gradient.item()); });
  sum(y * 5.0).backward();
  EXPECT_EQ(outside, (Doubles{5}));
  EXPECT_EQ(inside, (Doubles{15}));
  EXPECT_EQ(x.grad().item(), 450);
}

TEST(GradientHooks, OfLeavesAndOfOtherShapesAreRefused) {
  const Tensor x = Tensor::from({1.f, 2.f}, {2}).set_requires_grad(true);
  const auto ignore = [](const Tensor&) {};
  EXPECT_NE(refused([&] { x.register_hook(ignore); }).find("of a leaf"), std::string::npos);
  EXPECT_NE(refused([&] { x.detach().register_hook(ignore); }).find("no gradient reaches"),
            std::string::npos);
  const Tensor y = tanh(x);
  y.register_hook([](const Tensor&) { return Tensor::full({3}, 1); });
  const std::string message = refused([&] { sum(y).backward(); });
  EXPECT_EQ(message,
            "tanh: a hook returns float32 of shape [3] in place of a gradient of float32 "
            "of shape [2]");
  const Tensor z = tanh(x);
  sum(z).backward();
  EXPECT_NE(refused([&] { z.register_hook(ignore); }).find("after backward"), std::string::npos);
}

}  // namespace
}  // namespace tessera

// Recomputed modules: the order of hooks, one call for both runs, arguments.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "engine/recompute.h"

namespace tessera {
namespace {

using HookLines = std::vector<std::string>;

// A default-constructed handle is empty.
template <class Handle, class Impl>
Handle make() {
  return Handle(std::make_shared<Impl>());
}

// Two layers, one inside the other's call.
class StackedImpl : public nn::Module {
 public:
  StackedImpl() { inner_ = register_module("inner", nn::Linear(3, 3)); }
  Tensor forward(const Tensor& x) const { return tanh(inner_(x)) * 2.0; }
  nn::Linear& inner() { return inner_; }

 private:
  nn::Linear inner_;
};
TESSERA_MODULE(Stacked);

void watch(nn::Module& module, const std::string& name, HookLines& lines) {
  const auto say = [&lines, name](const char* what) {
    return [&lines, line = name + " " + what](auto&&...) { lines.push_back(line); };
  };
  auto hooks = std::make_shared<ModuleHooks>();
  hooks->before_forward = say("F{");
  hooks->after_forward = say("}F");
  hooks->before_backward = say("B{");
  hooks->after_backward = say("}B");
  module.set_hooks(hooks);
}

TEST(RecomputeModule, BackwardOfACallEnclosesItsSecondRun) {
  const Stacked stacked = make<Stacked, StackedImpl>();
  HookLines lines;
  watch(*stacked, "outer", lines);
  watch(*stacked->inner(), "inner", lines);
  stacked->set_recompute(RecomputeOptions{});
  const Tensor x = Tensor::full({1, 3}, 1).set_requires_grad(true);
  const Tensor y = stacked(stacked(x));
  const HookLines forward{"outer F{", "inner F{", "inner }F", "outer }F"};
  HookLines wanted = forward;
  wanted.insert(wanted.end(), forward.begin(), forward.end());
  EXPECT_EQ(lines, wanted);
  sum(y).backward();
  // Two calls are two regions, recomputed when backward reaches each.
  HookLines backward = forward;
  for (const char* line : {"outer B{", "inner B{", "inner }B", "outer }B"})
    backward.emplace_back(line);
  wanted.insert(wanted.end(), backward.begin(), backward.end());
  wanted.insert(wanted.end(), backward.begin(), backward.end());
  EXPECT_EQ(lines, wanted);
}

struct NotingImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    calls.push_back(current_module_call());
    again.push_back(calls.back()->recompute);
    return tanh(x);
  }
  std::vector<std::shared_ptr<ModuleCall>> calls;
  std::vector<bool> again;
};
TESSERA_MODULE(Noting);

TEST(RecomputeModule, BothRunsAreOneCall) {
  const Noting noting = make<Noting, NotingImpl>();
  HookLines lines;
  watch(*noting, "it", lines);
  const Tensor x = Tensor::full({3}, 1).set_requires_grad(true);
  sum(recompute([&](const Tensor& in) { return noting(noting(in)); }, x)).backward();
  ASSERT_EQ(noting->calls.size(), 4u);
  EXPECT_NE(noting->calls[0], noting->calls[1]);
  EXPECT_EQ(noting->calls[0], noting->calls[2]);
  EXPECT_EQ(noting->calls[1], noting->calls[3]);
  EXPECT_EQ(noting->again, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(lines, (HookLines{"it F{", "it }F", "it F{", "it }F", "it F{", "it }F", "it F{",
                              "it }F", "it B{", "it }B", "it B{", "it }B"}));
}

TEST(RecomputeModule, OtherModulesInTheSecondRunAreRefused) {
  const Stacked first = make<Stacked, StackedImpl>();
  const Stacked second = make<Stacked, StackedImpl>();
  HookLines lines;
  watch(*first, "first", lines);
  watch(*second, "second", lines);
  int run = 0;
  const Tensor x = Tensor::full({1, 3}, 1).set_requires_grad(true);
  const Tensor y =
      recompute([&](const Tensor& in) { return run++ == 0 ? first(in) : second(in); }, x);
  try {
    sum(y).backward();
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("calls other modules"), std::string::npos);
  }
  EXPECT_EQ(current_module_call(), nullptr);
}

// A forward's arguments may have any copyable type, and its result any type.
struct Scales {
  std::vector<Tensor> tensors;
};
class ScalingImpl : public nn::Module {
 public:
  ScalingImpl() { linear_ = register_module("linear", nn::Linear(3, 3)); }
  std::pair<Tensor, int> forward(const Tensor& x, const Scales& scales, int power) const {
    Tensor y = dropout(linear_(x), is_training() ? 0.5 : 0.0);
    for (int i = 0; i < power; ++i) {
      for (const Tensor& scale : scales.tensors) y = tanh(y * scale);
    }
    return {y, power};
  }
  Tensor forward(const std::unique_ptr<Tensor>& x) const { return linear_(*x); }

 private:
  nn::Linear linear_;
};
TESSERA_MODULE(Scaling);

TEST(RecomputeModule, TakesArgumentsOfAnyTypeThatCanBeCopied) {
  manual_seed(3);
  const Scaling scaling = make<Scaling, ScalingImpl>();
  Tensor scale = Tensor::full({3}, 0.5).set_requires_grad(true);
  Tensor x = Tensor::full({2, 3}, 1).set_requires_grad(true);
  const auto gradients = [&] {
    begin_batch({.step = 4, .first_sample = 0, .samples = 2});
    const auto [y, power] = scaling(x * 2.0, Scales{{scale, scale * 3.0}}, 2);
    EXPECT_EQ(power, 2);
    sum(y).backward();
    std::vector<std::vector<double>> all{x.grad().to_vector(), scale.grad().to_vector()};
    x.zero_grad();
    scale.zero_grad();
    for (auto& parameter : scaling->named_parameters()) {
      all.push_back(parameter.tensor.grad().to_vector());
      parameter.tensor.zero_grad();
    }
    return all;
  };
  const auto expected = gradients();
  scaling->set_recompute(RecomputeOptions{});
  EXPECT_EQ(gradients(), expected);
  const auto owner = std::make_unique<Tensor>(x);
  EXPECT_THROW((void)scaling(owner), std::logic_error);
  const NoGradGuard no_grad;
  EXPECT_EQ(scaling(owner).shape(), x.shape());
}

}  // namespace
}  // namespace tessera

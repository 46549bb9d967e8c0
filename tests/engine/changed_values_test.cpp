// A backward reads the forward's values: if they were changed in between, it is refused with the
// op's name; correct training loops are not refused.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/ops/products/grouped.h"
#include "engine/optim/optimizer.h"
#include "engine/recompute.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using testing::leaf;

struct TwoLayers : nn::Module {
  TwoLayers()
      : first(register_module("first", nn::Linear(3, 3))),
        second(register_module("second", nn::Linear(3, 1))) {}
  Tensor forward(const Tensor& x) const { return second(tanh(first(x))); }
  nn::Linear first, second;
};

optim::Sgd sgd_of(nn::Module& module) {
  return optim::Sgd(module.parameters(), {.lr = 0.1});
}

const Tensor& input() {
  static const Tensor x = Tensor::from({1.f, 2.f, 3.f}, {1, 3});
  return x;
}

TEST(ChangedValues, AnOptimizersStepBeforeBackwardIsRefused) {
  TwoLayers net;
  optim::Sgd optimizer = sgd_of(net);
  sum(net.forward(input())).backward();
  const Tensor stale = sum(net.forward(input()));
  optimizer.step();
  const std::string message = testing::misuse_of([&] { stale.backward(); });
  EXPECT_EQ(message.find("linear: a parameter of float32 and shape [1, 3], which its backward "
                         "reads, has been written since the forward"),
            0u)
      << message;
  EXPECT_NE(message.find("in the backward of second, of class Linear"), std::string::npos)
      << message;
  // The engine is still usable.
  optimizer.zero_grad();
  sum(net.forward(input())).backward();
  optimizer.step();
}

TEST(ChangedValues, CopyFromIsDetectedThroughEveryView) {
  for (const int which : {0, 1, 2}) {
    Tensor w = leaf({2, 2}, 1);
    Tensor view = which == 0 ? w : which == 1 ? reshape(w, {4}) : w.detach();
    const Tensor x = leaf(view.shape(), 2);
    const Tensor loss = sum(x * view);
    if (which == 1) {
      w.copy_from(Tensor::full({2, 2}, 1, float64));
    } else {
      view.copy_from(Tensor::full(view.shape(), 1, float64));
    }
    EXPECT_EQ(testing::misuse_of([&] { loss.backward(); }).find("multiply: a "), 0u) << which;
  }
}

// Values that no backward reads may change: the weight of a layer whose input needs no gradient,
// both inputs of a sum, and the table of an embedding.
TEST(ChangedValues, OnlyValuesThatABackwardReadsCount) {
  Tensor weight = leaf({2, 3}, 1);
  Tensor bias = leaf({2}, 2);
  Tensor table = leaf({4, 3}, 3);
  const Tensor loss = sum(linear(Tensor::full({1, 3}, 1, float64), weight, bias)) +
                      sum(embedding(Tensor::from({1}, {1}), table));
  for (Tensor* parameter : {&weight, &bias, &table})
    parameter->copy_from(Tensor::zeros(parameter->shape(), float64));
  loss.backward();
  EXPECT_TRUE(weight.grad().defined() && bias.grad().defined() && table.grad().defined());
}

TEST(ChangedValues, EveryOpThatReadsItsInputsChecks) {
  const Tensor w = leaf({2, 2}, 5);
  const Tensor batch = leaf({1, 2, 2}, 6);
  const Tensor targets = Tensor::from({1, 0}, {2});
  const Sequences sequences{.starts = Tensor::from({0}, {1}),
                            .lengths = Tensor::from({2}, {1}),
                            .slots = Tensor::from({0, 1}, {2}),
                            .longest = 2,
                            .capacity = 2};
  const RowGroups groups = group_rows(Tensor::from({0, 0}, {2, 1}), 1);
  const WeightLayout layout = WeightLayout::out_in;
  const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> ops{
      {"tanh", [](const Tensor& x) { return tanh(x); }},
      {"multiply", [&](const Tensor& x) { return w * x; }},
      {"divide", [&](const Tensor& x) { return w / x; }},
      {"matmul", [&](const Tensor& x) { return matmul(x, w); }},
      {"linear", [&](const Tensor& x) { return linear(x, w); }},
      {"linear", [&](const Tensor& x) { return linear(w, x); }},
      {"bias_gelu_linear",
       [&](const Tensor& x) { return bias_gelu_linear(x, {}, w, {}, layout, true); }},
      {"swiglu_linear", [&](const Tensor& x) { return swiglu_linear(w, x, w, layout); }},
      {"grouped_linear",
       [&](const Tensor& x) { return grouped_linear(w, std::vector{x}, groups); }},
      {"grouped_linear",
       [&](const Tensor& x) { return grouped_linear(x, std::vector{w}, groups); }},
      {"grouped_linear",
       [&](const Tensor& x) {
         return grouped_linear(dispatch_rows(x, groups), std::vector{w}, groups);
       }},
      {"grouped_linear",
       [&](const Tensor& x) {
         return grouped_linear(w, reshape(x, {1, x.size(0), x.size(1)}), {}, groups,
                               WeightLayout::out_in);
       }},
      {"grouped_swiglu_linear",
       [&](const Tensor& x) { return grouped_swiglu_linear(w, x, std::vector{w}, groups); }},
      {"layer_norm", [](const Tensor& x) { return layer_norm(x, {}, {}); }},
      {"attention",
       [&](const Tensor& x) {
         return attention(batch, reshape(x, {1, 2, 2}), batch, {});
       }},
      {"sequence_attention",
       [&](const Tensor& x) { return sequence_attention(w, w, x, sequences, {}); }},
      {"normalize_rows", [](const Tensor& x) { return normalize_rows(x); }},
      {"cross_entropy", [&](const Tensor& x) { return cross_entropy(x, targets); }},
      {"linear_cross_entropy",
       [&](const Tensor& x) { return linear_cross_entropy(w, x, targets); }},
      {"multiply",
       [&](const Tensor& x) {
         return reshape(w, {2, 1, 2}) * x;
       }},
      {"maximum", [&](const Tensor& x) { return maximum(x, w); }},
      {"sin", [](const Tensor& x) { return sin(x); }},
      {"max", [](const Tensor& x) { return max(x, 1); }},
  };
  for (const auto& [name, op] : ops) {
    Tensor x = leaf({2, 2}, 1, 0.5, 1.5);
    const Tensor loss = sum(op(x));
    x.copy_from(Tensor::full({2, 2}, 2, float64));
    EXPECT_EQ(testing::misuse_of([&] { loss.backward(); }).find(name + ": a "), 0u) << name;
  }
  Tensor qkv = leaf({1, 2, 6}, 1);
  const Tensor loss = sum(packed_attention(qkv, {}));
  qkv.copy_from(Tensor::zeros({1, 2, 6}, float64));
  EXPECT_EQ(testing::misuse_of([&] { loss.backward(); }).find("packed_attention: a parameter"), 0u);
}

TEST(ChangedValues, ARecomputedFunctionRequiresUnchangedParameters) {
  TwoLayers net;
  optim::Sgd optimizer = sgd_of(net);
  sum(net.forward(input())).backward();
  net.first->set_recompute(RecomputeOptions{});
  const Tensor x = input().detach().set_requires_grad(true);
  const Tensor stale = sum(net.first(x));
  optimizer.step();
  const std::string message = testing::misuse_of([&] { stale.backward(); });
  EXPECT_EQ(message.find("linear: a parameter of shape [3, 3], which a recomputed function reads"),
            0u)
      << message;
  optimizer.zero_grad();
  sum(net.first(x)).backward();
  optimizer.step();
}

// Correct loops: accumulation, a validation between steps, an average of the weights, a frozen
// teacher that is copied into, and a target that is written for each batch.
TEST(ChangedValues, CorrectLoopsAreNotRefused) {
  TwoLayers net, average;
  optim::Sgd optimizer = sgd_of(net);
  for (auto& parameter : average.parameters()) parameter.tensor.set_requires_grad(false);
  Tensor batch = Tensor::zeros({1, 3});
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      batch.copy_from(Tensor::full({1, 3}, step + micro));
      sum(square(net.forward(batch) - average.forward(batch))).backward();
    }
    optimizer.step();
    optimizer.zero_grad();
    const auto from = net.parameters();
    const auto to = average.parameters();
    for (std::size_t i = 0; i < to.size(); ++i) Tensor(to[i].tensor).copy_from(from[i].tensor);
    const NoGradGuard no_grad;
    (void)net.forward(batch);
  }
}

// `fake` is computed before the discriminator's step and used after it: its own graph uses only the
// generator.
TEST(ChangedValues, AGanIsNotRefused) {
  TwoLayers generator;
  TwoLayers discriminator;
  const nn::Linear widen(1, 3);
  optim::Sgd of_generator = sgd_of(generator);
  optim::Sgd of_discriminator = sgd_of(discriminator);
  for (int step = 0; step < 3; ++step) {
    const Tensor fake = widen(generator.forward(input()));
    sum(discriminator.forward(fake.detach())).backward();
    of_discriminator.step();
    of_discriminator.zero_grad();
    sum(discriminator.forward(fake)).backward();
    of_generator.step();
    of_generator.zero_grad();
    of_discriminator.zero_grad();
  }
  // A backward through the discriminator's old values is refused.
  const Tensor fake = widen(generator.forward(input()));
  const Tensor old = sum(discriminator.forward(fake));
  sum(discriminator.forward(fake.detach())).backward();
  of_discriminator.step();
  EXPECT_NE(testing::misuse_of([&] { old.backward(); }).find("has been written since the forward"),
            std::string::npos);
}

TEST(ChangedValues, VersionsCanBeShared) {
  Tensor master = Tensor::zeros({4});
  const Tensor copy = Tensor::zeros({2}).set_requires_grad(true);
  copy.share_version(master);
  const Tensor loss = sum(square(copy));
  master.copy_from(Tensor::full({4}, 1));
  EXPECT_EQ(testing::misuse_of([&] { loss.backward(); }).find("square: a parameter"), 0u);
}

}  // namespace
}  // namespace tessera

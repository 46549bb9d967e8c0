// A backward that keeps its graph: several losses over one trunk, one after the other.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/ops/products/grouped.h"
#include "engine/random.h"
#include "engine/recompute.h"
#include "engine/tensor_ops.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using testing::leaf;
using testing::weighted_sum;
using Doubles = std::vector<double>;

std::vector<Doubles> gradients_of(std::vector<Tensor> leaves) {
  std::vector<Doubles> all;
  for (Tensor& x : leaves) {
    all.push_back(x.grad().to_vector());
    x.zero_grad();
  }
  return all;
}

// Saved tensors are still there the second time: two backwards give twice the gradient of each op,
// and the last backward frees the graph's memory.
void check_twice(const std::function<Tensor()>& function, const std::vector<Tensor>& leaves) {
  function().backward();
  const std::vector<Doubles> wanted = gradients_of(leaves);
  const Tensor root = function();
  root.backward({}, true);
  EXPECT_EQ(gradients_of(leaves), wanted);
  root.backward({}, true);
  root.backward();
  const std::vector<Doubles> doubled = gradients_of(leaves);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (std::size_t k = 0; k < wanted[i].size(); ++k)
      EXPECT_NEAR(doubled[i][k], 2 * wanted[i][k], 1e-12);
  }
  EXPECT_THROW(root.backward(), std::logic_error);
}

TEST(RetainGraph, EveryOpFindsItsSavedTensors) {
  const Tensor x = leaf({1, 3, 4}, 1, 0.5, 1.5);
  const Tensor w = leaf({4, 4}, 2);
  const Tensor gamma = leaf({4}, 3, 0.5, 1.5);
  const Tensor targets = Tensor::from({1, 0, 3}, {1, 3});
  const WeightLayout layout = WeightLayout::out_in;
  check_twice([&] { return weighted_sum(tanh(x) * x / (x + 2.0) - sqrt(x)); }, {x});
  check_twice(
      [&] {
        return weighted_sum(softmax(reshape(matmul(reshape(x, {3, 4}), w), {4, 3})));
      },
      {x, w});
  check_twice([&] { return weighted_sum(linear(layer_norm(x, gamma, {}), w, gamma)); },
              {x, w, gamma});
  check_twice([&] { return weighted_sum(linear(add_rms_norm(x, x * 2.0, gamma).second, w)); },
              {x, w, gamma});
  // Ops that overwrite their saved tensors when these have no other user.
  check_twice([&] { return weighted_sum(bias_gelu_linear(x * 1.0, gamma, w, {}, layout, true)); },
              {x, w, gamma});
  check_twice([&] { return cross_entropy(linear(x, w), targets); }, {x, w});
  check_twice([&] { return weighted_sum(swiglu_linear(x * 1.0, x * 2.0, w, layout)); }, {x, w});
  check_twice([&] { return linear_cross_entropy(x, w, targets); }, {x, w});
  check_twice([&] { return weighted_sum(attention(x, x * 2.0, x, {.heads = 2, .causal = true})); },
              {x});
  const Tensor qkv = leaf({1, 3, 12}, 4);
  check_twice([&] { return weighted_sum(packed_attention(qkv, {.heads = 2})); }, {qkv});
  const Tensor bias = leaf({qkv.size(1), qkv.size(1)}, 9);
  check_twice([&] { return weighted_sum(packed_attention(qkv, {.heads = 2, .bias = bias})); },
              {qkv, bias});
  check_twice([&] { return weighted_sum(normalize_rows(x)); }, {x});
  check_twice(
      [&] {
        return weighted_sum(max(pow(x, 2) * reshape(gamma, {1, 1, 4}), {1}));
      },
      {x, gamma});
  check_twice([&] { return weighted_sum(concatenate(split(where(less(x, 1), x, x * x), 2, -1))); },
              {x});
  check_twice([&] { return weighted_sum(sort(cumulative_sum(transpose(x), 1)).values); }, {x});
  const Tensor ids = Tensor::from({3, 1, 1}, {3});
  check_twice([&] { return weighted_sum(embedding(ids, w)); }, {w});
  const RowGroups groups = group_rows(Tensor::from({1, 0, 1}, {3, 1}), 2);
  check_twice(
      [&] {
        const Tensor rows = dispatch_rows(reshape(x, {3, 4}), groups);
        const Tensor y = grouped_linear(rows, std::vector{w, w}, groups);
        return weighted_sum(
            combine_rows(grouped_swiglu_linear(y, rows, std::vector{w, w}, groups), groups));
      },
      {x, w});
  manual_seed(3);
  check_twice(
      [&] {
        begin_batch({.step = 5, .first_sample = 2, .samples = 1});
        return weighted_sum(dropout(x, 0.5));
      },
      {x});
}

// Two losses over one trunk, with one backward after the other, give the gradients of their sum.
TEST(RetainGraph, TwoLossesOverOneTrunkAddUp) {
  const Tensor x = leaf({3, 4}, 1);
  const Tensor w = leaf({4, 4}, 2);
  const Tensor first = leaf({2, 4}, 3);
  const Tensor second = leaf({2, 4}, 4);
  const auto losses = [&] {
    const Tensor trunk = tanh(linear(x, w));
    return std::pair(weighted_sum(linear(trunk, first)), weighted_sum(linear(trunk, second)));
  };
  const auto [a, b] = losses();
  (a + b).backward();
  const auto wanted = gradients_of({x, w, first, second});
  const auto [c, d] = losses();
  c.backward({}, true);
  d.backward();
  const auto got = gradients_of({x, w, first, second});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (std::size_t k = 0; k < wanted[i].size(); ++k) EXPECT_NEAR(got[i][k], wanted[i][k], 1e-15);
  }
}

TEST(RetainGraph, TheRefusalNamesTheOpAndTheWayOut) {
  const Tensor x = leaf({2}, 1);
  const Tensor shared = tanh(x);
  const Tensor a = sum(shared * 3.0);
  const Tensor b = mean(shared * 4.0);
  a.backward();
  try {
    b.backward();
    FAIL();
  } catch (const std::logic_error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("backward() a second time through tanh"), 0u) << message;
    EXPECT_NE(message.find("retain_graph = true"), std::string::npos) << message;
  }
}

TEST(RetainGraph, ARecomputedFunctionRunsAgainForEachBackward) {
  manual_seed(3);
  const Tensor x = leaf({2, 4}, 1);
  const Tensor w = leaf({4, 4}, 2);
  int runs = 0;
  const auto function = [&](const Tensor& in) {
    ++runs;
    // It contains another recomputed function, dropout, and a kept result.
    const Tensor h = recompute([&](const Tensor& again) { return tanh(linear(again, w)); }, in);
    return linear(dropout(h, 0.25), w);
  };
  for (const OpSet keep : {OpSet{}, OpSet{Op::linear}}) {
    const auto root = [&](bool recomputed) {
      begin_batch({.step = 5, .first_sample = 2, .samples = 2});
      const Tensor y =
          recomputed ? recompute({.keep = keep}, function, x * 1.0) : function(x * 1.0);
      return std::pair(weighted_sum(y, 1), weighted_sum(y, 2));
    };
    const auto [a, b] = root(false);
    a.backward({}, true);
    b.backward();
    const auto wanted = gradients_of({x, w});
    const auto [c, d] = root(true);
    runs = 0;
    c.backward({}, true);
    d.backward({}, true);
    EXPECT_EQ(runs, 2);
    EXPECT_EQ(gradients_of({x, w}), wanted);
    c.backward({}, true);
    d.backward();
    EXPECT_EQ(gradients_of({x, w}), wanted);
    EXPECT_THROW(c.backward(), std::logic_error);
  }
}

// A run consumes an argument that is moved in; each run has its own copy.
TEST(RetainGraph, ArgumentsThatAreMovedInAreRestored) {
  const Tensor x = leaf({2}, 1);
  const auto consume = [](std::vector<Tensor>&& factors) {
    const std::vector<Tensor> taken = std::move(factors);
    return tanh(taken.at(0)) * taken.at(1);
  };
  const auto root = [&] { return sum(recompute(consume, std::vector<Tensor>{x, x * 2.0})); };
  check_twice(root, {x});
}

TEST(RetainGraph, AModulesHooksEnterItAgain) {
  const nn::Linear layer(2, 2);
  int entered = 0, left = 0;
  auto hooks = std::make_shared<ModuleHooks>();
  hooks->before_backward = [&](const ModuleCall&) { ++entered; };
  hooks->after_backward = [&](const ModuleCall&) { ++left; };
  layer->set_hooks(hooks);
  const Tensor loss = sum(layer(Tensor::full({1, 2}, 1)));
  loss.backward({}, true);
  loss.backward();
  EXPECT_EQ(entered, 2);
  EXPECT_EQ(left, 2);
}

// Gradients that an exception left in the middle of the graph do not enter a later gradient.
TEST(RetainGraph, AfterAnErrorNoGradientIsLeftBehind) {
  const Tensor x = leaf({2}, 1);
  bool fails = true;
  const Tensor h = tanh(x);
  const Tensor y = h * 3.0;
  y.register_hook([&](const Tensor&) {
    if (fails) throw std::runtime_error("stop");
  });
  const Tensor loss = sum(h * 2.0 + y);
  EXPECT_THROW(loss.backward({}, true), std::runtime_error);
  fails = false;
  loss.backward();
  const Doubles got = x.grad().to_vector();
  Tensor(x).zero_grad();
  sum(tanh(x) * 2.0 + tanh(x) * 3.0).backward();
  const Doubles wanted = x.grad().to_vector();
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(got[i], wanted[i], 1e-15);
}

}  // namespace
}  // namespace tessera

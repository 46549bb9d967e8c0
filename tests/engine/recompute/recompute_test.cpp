// Recomputed functions: the bits of gradients, for all kinds of inputs and outputs.
#include "engine/recompute.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "engine/random.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

using Gradients = std::vector<std::vector<double>>;

// Half of a transformer's layer, with dropout.
struct HalfLayerImpl : nn::Module {
  HalfLayerImpl() {
    norm = register_module("norm", nn::LayerNorm(12));
    in = register_module("in", nn::Linear(12, 36));
    out = register_module("out", nn::Linear(12, 12));
    dropout = register_module("dropout", nn::Dropout(0.2));
  }
  [[nodiscard]] Tensor forward(const Tensor& x) const {
    const Tensor seen = packed_attention(
        in(norm(x)), {.heads = 3, .causal = true, .dropout = is_training() ? 0.1 : 0.0});
    return x + dropout(gelu(out(seen)));
  }
  nn::LayerNorm norm;
  nn::Linear in, out;
  nn::Dropout dropout;
};
TESSERA_MODULE(HalfLayer);

HalfLayer half_layer() {
  return HalfLayer(std::make_shared<HalfLayerImpl>());
}

struct TwoHalves : nn::Module {
  HalfLayer first = register_module("first", half_layer());
  HalfLayer second = register_module("second", half_layer());
};

Tensor fp32_values(const Shape& shape, unsigned seed) {
  return cast(testing::values(shape, seed), float32);
}

Tensor fp32_sum(const Tensor& x) {
  return testing::weighted_sum(cast(x, float64));
}

// The gradients of the module's parameters and of `x` after two passes.
Gradients gradients_of(nn::Module& net, Tensor& x, const std::function<Tensor()>& loss) {
  for (int pass = 0; pass < 2; ++pass) {
    begin_batch({.step = static_cast<std::uint64_t>(pass), .first_sample = 4, .samples = 2});
    loss().backward();
  }
  Gradients all{x.grad().to_vector()};
  x.zero_grad();
  for (auto& parameter : net.named_parameters()) {
    all.push_back(parameter.tensor.grad().to_vector());
    parameter.tensor.zero_grad();
  }
  return all;
}

class Recompute : public ::testing::Test {
 protected:
  Recompute() { manual_seed(5); }
  testing::OneThread one_thread_;
};

TEST_F(Recompute, GivesTheSameBitsWithDropoutAndAnInputUsedElsewhere) {
  TwoHalves net;
  Tensor x = fp32_values({2, 5, 12}, 1).set_requires_grad(true);
  const auto loss = [&](bool again) {
    const auto call = [again](const HalfLayer& layer, const Tensor& in) {
      return again ? recompute([layer](const Tensor& t) { return layer(t); }, in) : layer(in);
    };
    // Gradients of x and of h come from inside and outside the function; their sums keep their
    // order.
    const Tensor h = x * 3.0;
    const Tensor y = call(net.second, call(net.first, h)) * h + dropout(x, 0.3);
    return fp32_sum(y * call(net.first, x));  // a module that is called twice
  };
  const Gradients expected = gradients_of(net, x, [&] { return loss(false); });
  EXPECT_EQ(gradients_of(net, x, [&] { return loss(true); }), expected);
}

TEST_F(Recompute, LeavesTheGeneratorAsAPlainCallDoes) {
  const HalfLayer layer = half_layer();
  const Tensor x = fp32_values({2, 5, 12}, 1).set_requires_grad(true);
  begin_batch({.step = 3, .first_sample = 0, .samples = 2});
  const Tensor plain = layer->forward(x);
  const GeneratorState after = generator_state();
  begin_batch({.step = 3, .first_sample = 0, .samples = 2});
  const Tensor again = recompute([&](const Tensor& in) { return layer->forward(in); }, x);
  EXPECT_EQ(generator_state(), after);
  EXPECT_EQ(again.to_vector(), plain.to_vector());
  begin_batch({.step = 9, .first_sample = 7, .samples = 3});
  const GeneratorState elsewhere = generator_state();
  fp32_sum(again).backward();
  EXPECT_EQ(generator_state(), elsewhere);
}

// Tensors that the function captures, other than its inputs, may have a graph too.
TEST_F(Recompute, ReachesTensorsThatTheFunctionCaptures) {
  const Tensor a = testing::leaf({3, 4}, 1);
  const Tensor b = testing::leaf({4}, 2);
  const auto gradients = [&](bool again) {
    const Tensor computed = a * 2.0;
    const Tensor other = relu(b);
    const auto fn = [&, other] { return computed * other + b; };
    const Tensor y = again ? recompute(fn) : fn();
    testing::weighted_sum(y + computed).backward();
    Gradients all{a.grad().to_vector(), b.grad().to_vector()};
    Tensor(a).zero_grad();
    Tensor(b).zero_grad();
    return all;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

struct Results {
  Tensor sum, product;
  int count = 0;
};

TEST_F(Recompute, ResultsMayBeOfAnyType) {
  const Tensor x = testing::leaf({3, 4}, 1);
  const Tensor weight = testing::leaf({4, 4}, 2);
  const auto gradients = [&](bool again) {
    Tensor aside;  // neither an argument nor a result
    const auto fn = [&](const Tensor& in) {
      const Tensor h = tanh(linear(in, weight));
      if (!aside) aside = h * 0.5;
      return std::pair(Results{h + in, h * in, 7}, std::array{in, sum(h)});
    };
    const auto fn_that_repeats = [&](const Tensor& in) {
      const Tensor h = tanh(linear(in, weight));
      const Tensor kept = h * 0.5;
      if (!aside) aside = kept;
      return std::pair(Results{h + in, h * in, 7}, std::array{in, sum(h)});
    };
    const auto result = again ? recompute(fn_that_repeats, x) : fn(x);
    EXPECT_EQ(result.first.count, 7);
    // h * in is not used, and `in` itself is a result.
    (testing::weighted_sum(result.first.sum) + result.second[1] * sum(result.second[0]) +
     testing::weighted_sum(aside, 3))
        .backward();
    Gradients all{x.grad().to_vector(), weight.grad().to_vector()};
    Tensor(x).zero_grad();
    Tensor(weight).zero_grad();
    return all;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST_F(Recompute, ArgumentsAreKeptUnchanged) {
  const Tensor x = testing::leaf({4}, 1);
  std::vector<int> sizes;
  const auto fn = [&sizes, calls = 0](std::vector<Tensor>& all, Tensor last) mutable {
    sizes.push_back(static_cast<int>(all.size()) * 10 + calls++);
    Tensor total = std::move(last);
    while (!all.empty()) {
      total = total * all.back();
      all.pop_back();
    }
    return sum(total);
  };
  std::vector<Tensor> all{x, x * 2.0};
  recompute(fn, all, x * 5.0).backward();
  EXPECT_TRUE(all.empty());
  EXPECT_EQ(sizes, (std::vector<int>{20, 20}));  // the function's own state too
  std::vector<double> wanted;
  for (const double value : x.to_vector()) wanted.push_back(30 * value * value);
  const auto got = x.grad().to_vector();
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12);
}

TEST_F(Recompute, FunctionsInsideFunctionsGiveTheSameBits) {
  const HalfLayer layer = half_layer();
  Tensor x = fp32_values({2, 5, 12}, 1).set_requires_grad(true);
  const auto forward = [layer](const Tensor& t) { return layer(t); };
  const auto loss = [&](int depth) {
    const auto inner = [=](const Tensor& t) {
      return depth > 1 ? recompute(forward, forward(t)) : forward(forward(t));
    };
    const auto middle = [=](const Tensor& t) {
      return depth > 2 ? relu(recompute(inner, t * 2.0)) : relu(inner(t * 2.0));
    };
    return fp32_sum(depth > 0 ? recompute(middle, x) : middle(x));
  };
  const Gradients expected = gradients_of(*layer, x, [&] { return loss(0); });
  for (const int depth : {1, 2, 3}) {
    EXPECT_EQ(gradients_of(*layer, x, [&] { return loss(depth); }), expected) << depth;
  }
}

TEST_F(Recompute, InputsAndParametersWithoutGradientGetNone) {
  const HalfLayer layer = half_layer();
  layer->in->named_parameters()[0].tensor.set_requires_grad(false);
  const Tensor x = fp32_values({2, 5, 12}, 1);
  const auto forward = [&](const Tensor& t) { return layer->forward(t); };
  fp32_sum(recompute(forward, x)).backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(layer->in->weight().grad().defined());
  EXPECT_TRUE(layer->in->bias().grad().defined());
  for (auto& parameter : layer->named_parameters()) parameter.tensor.set_requires_grad(false);
  EXPECT_FALSE(recompute(forward, x).requires_grad());
}

TEST_F(Recompute, IsAPlainCallWithoutGradients) {
  const Tensor x = testing::leaf({4}, 1);
  int calls = 0;
  const auto fn = [&](const Tensor& in) {
    ++calls;
    return sum(in * 2.0);
  };
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE(recompute(fn, x).requires_grad());
  }
  EXPECT_EQ(calls, 1);
  recompute(fn, x).backward();
  EXPECT_EQ(calls, 3);
}

TEST_F(Recompute, FunctionsMayTurnGradientsOffInside) {
  const Tensor x = testing::leaf({4}, 1, 0.5, 1.5);
  const auto gradient = [&](bool again) {
    const auto fn = [&](const Tensor& in) {
      const Tensor scale = [&] {
        const NoGradGuard no_grad;
        return exp(in * 2.0);
      }();
      return sum(in * scale + in * in.detach());
    };
    (again ? recompute(fn, x) : fn(x)).backward();
    const auto values = x.grad().to_vector();
    Tensor(x).zero_grad();
    return values;
  };
  EXPECT_EQ(gradient(true), gradient(false));
}

TEST_F(Recompute, RunsOnMeta) {
  const DeviceGuard meta(Device::meta());
  const HalfLayer layer = half_layer();
  const Tensor x = Tensor::empty({2, 5, 12}).set_requires_grad(true);
  sum(recompute([&](const Tensor& t) { return layer->forward(t); }, x)).backward();
  EXPECT_EQ(x.grad().shape(), x.shape());
  EXPECT_EQ(layer->out->weight().grad().shape(), layer->out->weight().shape());
}

// The thread's default device is part of the function's environment.
TEST_F(Recompute, StartsWithTheDefaultDeviceOfTheFirstRun) {
  const Tensor x = testing::leaf({4}, 1);
  const auto make = [](const Tensor& in) { return sum(in * Tensor::full({4}, 3, float64)); };
  const Tensor y = recompute(make, x);
  const DeviceGuard meta(Device::meta());
  y.backward(Tensor::full({}, 1, float64, Device::cpu()));
  EXPECT_EQ(x.grad().to_vector(), (std::vector<double>(4, 3.0)));
}

}  // namespace
}  // namespace tessera

// The tape: where gradients are accumulated, what a backward frees, and what is refused.
#include "engine/autograd.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "engine/device/memory.h"
#include "engine/module_call.h"
#include "engine/ops.h"
#include "support/gradient_check.h"
#include "support/one_thread.h"

namespace tessera {
namespace {

using testing::leaf;
using testing::values;

Tensor fp32_leaf(const std::vector<float>& numbers) {
  return Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())}).set_requires_grad(true);
}

using Numbers = std::vector<double>;

TEST(Autograd, GradientsAddUpUntilTheyAreZeroed) {
  Tensor x = fp32_leaf({1, 2});
  EXPECT_FALSE(x.grad().defined());
  sum(x * x).backward();
  EXPECT_EQ(x.grad().to_vector(), (Numbers{2, 4}));
  sum(x).backward();
  EXPECT_EQ(x.grad().to_vector(), (Numbers{3, 5}));
  x.zero_grad();
  EXPECT_FALSE(x.grad().defined());
  sum(x).backward();
  EXPECT_EQ(x.grad().to_vector(), (Numbers{1, 1}));
}

TEST(Autograd, AGivenGradientViewIsWrittenInPlace) {
  const Tensor buffer = Tensor::full({6}, 100);
  const Tensor weight = values({2, 2}, 1);
  Tensor parameter = Tensor::empty({2, 2}).set_requires_grad(true);
  parameter.copy_from(weight);
  parameter.impl()->grad =
      Tensor::view_of(buffer.storage(), 2 * sizeof(float), {2, 2}, float32).impl();
  const Tensor x = Tensor::full({1, 2}, 1);
  sum(linear(x, parameter)).backward();  // written by a kernel
  EXPECT_EQ(buffer.to_vector(), (Numbers{100, 100, 1, 1, 1, 1}));
  sum(parameter).backward();  // passed on and added
  EXPECT_EQ(buffer.to_vector(), (Numbers{100, 100, 2, 2, 2, 2}));
  EXPECT_EQ(parameter.grad().data(), buffer.data() + 2 * sizeof(float));
}

TEST(Autograd, AGivenGradientMayHaveAnotherDtype) {
  Tensor parameter = Tensor::full({2}, 3, bfloat16).set_requires_grad(true);
  parameter.impl()->grad = Tensor::empty({2}, float32).impl();
  for (const double wanted : {6.0, 12.0}) {
    sum(square(parameter)).backward();
    EXPECT_EQ(parameter.grad().dtype(), float32);
    EXPECT_EQ(parameter.grad().to_vector(), (Numbers{wanted, wanted}));
  }
}

// Products write directly into a given float32 gradient of a bfloat16 weight: sums that bfloat16
// cannot represent arrive exactly, and no second gradient is allocated.
TEST(Autograd, AGivenWideGradientIsWrittenByProducts) {
  constexpr std::int64_t rows = 257;  // a sum of ones that bfloat16 would round
  const auto wide_leaf = [](const Shape& shape) {
    Tensor parameter = Tensor::full(shape, 0.5, bfloat16).set_requires_grad(true);
    parameter.impl()->grad = Tensor::empty(shape, float32).impl();
    return parameter;
  };
  const auto check = [&](const Tensor& parameter, const Tensor& out, const char* what) {
    SCOPED_TRACE(what);
    const auto pool = MemoryPool::current();
    const Tensor loss = sum(cast(out, float32));
    const std::size_t before = pool->stats().in_use;
    pool->reset_peak();
    loss.backward();
    EXPECT_LT(pool->stats().peak_in_use - before, parameter.bytes());
    EXPECT_EQ(parameter.grad().dtype(), float32);
    EXPECT_EQ(parameter.grad().to_vector()[0], rows);
  };
  const Tensor x = Tensor::full({rows, 4096}, 1, bfloat16).set_requires_grad(false);
  const Tensor weight = wide_leaf({4096, 2});
  check(weight, linear(x, weight, {}, WeightLayout::in_out), "linear");
  const Tensor table = wide_leaf({100'000, 2});
  check(table, embedding(Tensor::zeros({rows}, int32), table), "embedding");
}

TEST(Autograd, AFactorLeftByClippingAppliesOnlyToTheOldGradient) {
  Tensor x = fp32_leaf({1});
  sum(x * 8.0).backward();
  x.impl()->grad->storage->edit_shard().pending_factor = 0.5f;
  sum(x * 3.0).backward();
  EXPECT_EQ(x.grad().to_vector(), (Numbers{7}));
  x.impl()->grad->storage->edit_shard().pending_factor = 0.5f;
  EXPECT_EQ(x.grad().to_vector(), (Numbers{3.5}));
  EXPECT_EQ(x.grad().to_vector(), (Numbers{3.5}));  // once
}

TEST(Autograd, NothingIsRecordedUnnecessarily) {
  Tensor x = fp32_leaf({1});
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE((x * 2.0).requires_grad());
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_FALSE((Tensor::full({1}, 1) * 2.0).requires_grad());
  EXPECT_FALSE((x.detach() * 2.0).requires_grad());
  EXPECT_TRUE((x * 2.0).requires_grad());
}

TEST(Autograd, BackwardFreesWhatWasSaved) {
  const Tensor x = fp32_leaf(std::vector<float>(1000, 1.0f));
  const Tensor y = x * 2.0;
  const std::weak_ptr<Storage> saved = [&] {
    const Tensor hidden = relu(y);
    const Tensor loss = sum(hidden * hidden);
    std::weak_ptr<Storage> storage = hidden.storage();
    EXPECT_FALSE(storage.expired());
    loss.backward();
    return storage;
  }();
  EXPECT_TRUE(saved.expired());
}

TEST(Autograd, ANormsOutputIsRecomputedInsteadOfKept) {
  const Tensor x = leaf({2, 3}, 1);
  const Tensor weight = leaf({4, 3}, 2);
  const Tensor gamma = leaf({3}, 3);
  const Numbers wanted = [&] {
    const Tensor kept = layer_norm(x, gamma, {}).detach();
    testing::weighted_sum(linear(kept, weight)).backward();
    return weight.grad().to_vector();
  }();
  Tensor(weight).zero_grad();
  Tensor normalised = layer_norm(x, gamma, {});
  const Tensor out = linear(normalised, weight);
  const std::weak_ptr<Storage> storage = normalised.storage();
  normalised = {};
  EXPECT_TRUE(storage.expired());
  testing::weighted_sum(out).backward();
  EXPECT_EQ(weight.grad().to_vector(), wanted);
}

// A module whose parameter exists only during its calls and their backwards, like a sharded one's.
struct LentGamma {
  Tensor values;
  std::shared_ptr<Storage> storage = Storage::lent(3 * sizeof(double), Device::cpu(), "the norm");
  Tensor gamma = Tensor::view_of(storage, 0, {3}, float64).set_requires_grad(true);
  std::shared_ptr<ModuleHooks> hooks = std::make_shared<ModuleHooks>();

  explicit LentGamma(const Tensor& from) : values(from.clone()) {
    hooks->before_forward =
        hooks->before_backward = [this](const ModuleCall&) { storage->attach(values.data()); };
    hooks->after_forward = hooks->after_backward = [this](const ModuleCall&) { storage->detach(); };
  }
};

// Within the norm's module, recomputing the norm's output needs no copy of its parameters. Outside,
// where the parameters are not available, it needs one.
TEST(Autograd, ANormIsRecomputedWithAndWithoutItsParameters) {
  const Tensor x = leaf({2, 3}, 1);
  const Tensor weight = leaf({4, 3}, 2);
  const Tensor gamma = leaf({3}, 3);
  testing::weighted_sum(linear(layer_norm(x, gamma, {}), weight)).backward();
  const Numbers wanted = weight.grad().to_vector();
  const auto pool = MemoryPool::current();
  for (const bool inside : {true, false}) {
    SCOPED_TRACE(inside);
    Tensor(weight).zero_grad();
    LentGamma lent(gamma);
    const std::size_t before = pool->stats().in_use;
    Tensor out;
    {
      ModuleCallScope call(lent.hooks);
      out = layer_norm(x, lent.gamma, {});
      if (inside) out = linear(out, weight);
      call.finish();
    }
    // Statistics and the output, 64 bytes each; gamma's copy has 64 more.
    EXPECT_EQ(pool->stats().in_use - before, inside ? 3u * 64 : 4u * 64);
    if (!inside) out = linear(out, weight);
    testing::weighted_sum(out).backward();
    EXPECT_EQ(weight.grad().to_vector(), wanted);
  }
}

TEST(Autograd, ALinearLayerWithAFrozenWeightKeepsNoInput) {
  const Tensor x = leaf({2, 3}, 1);
  Tensor hidden = relu(x);
  const Tensor out = linear(hidden, values({4, 3}, 2));
  const std::weak_ptr<Storage> storage = hidden.storage();
  hidden = {};
  EXPECT_TRUE(storage.expired());
  sum(out).backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Autograd, ASecondBackwardThroughAFreedGraphIsRefused) {
  const Tensor x = fp32_leaf({1});
  const Tensor shared = x * 2.0;
  const Tensor a = sum(shared * 3.0);
  const Tensor b = sum(shared * 4.0);
  a.backward();
  EXPECT_THROW(a.backward(), std::logic_error);
  EXPECT_THROW(b.backward(), std::logic_error);
}

TEST(Autograd, RefusesRootsWithoutGradientAndWrongSeeds) {
  const Tensor x = fp32_leaf({1, 2});
  EXPECT_THROW(Tensor::full({}, 1).backward(), std::logic_error);
  EXPECT_THROW((x * 2.0).backward(), std::logic_error);  // not a scalar
  EXPECT_THROW((x * 2.0).backward(Tensor::full({3}, 1)), std::logic_error);
  EXPECT_THROW((x * 2.0).backward(Tensor::full({2}, 1, float64)), std::logic_error);
  (x * 2.0).backward(Tensor::from(std::vector<float>{1, 10}, {2}));
  EXPECT_EQ(x.grad().to_vector(), (Numbers{2, 20}));
}

TEST(Autograd, TheSeedIsNotWrittenTo) {
  const Tensor x = fp32_leaf({1, 2});
  const Tensor seed = Tensor::full({2}, 5);
  const Tensor y = x * 1.0;
  add(y, y).backward(seed);
  EXPECT_EQ(seed.to_vector(), (Numbers{5, 5}));
  EXPECT_EQ(x.grad().to_vector(), (Numbers{10, 10}));
}

TEST(Autograd, ALeafIsARootToo) {
  Tensor x = fp32_leaf({4});
  x.backward();
  x.backward();
  EXPECT_EQ(x.grad().to_vector(), (Numbers{2}));
}

TEST(Autograd, GradientsReachOnlyDependenciesOfTheRoot) {
  const Tensor x = fp32_leaf({1});
  const Tensor y = fp32_leaf({1});
  const auto [total, normalised] = add_rms_norm(x * 1.0, y * 1.0, {});
  (void)normalised;  // an unused output
  sum(total).backward();
  EXPECT_EQ(y.grad().to_vector(), (Numbers{1}));
  const Tensor unused = y * 2.0;
  sum(x * 3.0).backward();
  EXPECT_EQ(y.grad().to_vector(), (Numbers{1}));
}

TEST(Autograd, LongChainsNeedNoDeepStack) {
  const testing::OneThread one_thread;
  const Tensor x = fp32_leaf({1});
  const auto chain = [&] {
    Tensor y = x;
    for (int i = 0; i < 40'000; ++i) y = relu(y + y.detach() * 0.0);
    return sum(y);
  };
  (void)chain();  // dropped without a backward
  chain().backward();
  EXPECT_EQ(x.grad().to_vector(), (Numbers{1}));
}

TEST(Autograd, CallbacksRunWhenBackwardHasFinished) {
  EXPECT_THROW(autograd::at_end_of_backward([] {}), std::logic_error);
  EXPECT_FALSE(autograd::in_backward());
  const Tensor x = fp32_leaf({1});
  std::vector<int> order;
  const Tensor hooked = x * 2.0;
  Tensor y = Tensor::empty({1});
  y.copy_from(hooked);
  autograd::record(Op::affine, {hooked}, {y},
                   [&](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
                     EXPECT_TRUE(autograd::in_backward());
                     order.push_back(1);
                     autograd::at_end_of_backward([&] {
                       EXPECT_TRUE(x.grad().defined());
                       order.push_back(2);
                     });
                     sink.add(0, dout[0]);
                   });
  y.backward();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(Autograd, AnErrorInBackwardLeavesTheEngineUsable) {
  const Tensor x = fp32_leaf({1});
  const Tensor hooked = x * 2.0;
  const Tensor y = Tensor::empty({1});
  autograd::record(Op::affine, {hooked}, {y}, [](std::vector<Tensor>&, autograd::GradientSink&) {
    throw std::runtime_error("stop");
  });
  EXPECT_THROW(y.backward(), std::runtime_error);
  EXPECT_FALSE(autograd::in_backward());
  EXPECT_TRUE(grad_enabled());
  sum(x * 5.0).backward();
  EXPECT_EQ(x.grad().to_vector(), (Numbers{5}));
}

// A callback after a failure may fail too, for the same reason: it does not hide the first error.
TEST(Autograd, TheFirstErrorOfABackwardIsThrown) {
  const Tensor x = fp32_leaf({1});
  const Tensor hooked = x * 2.0;
  const Tensor y = Tensor::empty({1});
  int told = 0;
  autograd::record(Op::affine, {hooked}, {y}, [&](std::vector<Tensor>&, autograd::GradientSink&) {
    for (int i = 0; i < 2; ++i) {
      autograd::at_end_of_backward([] {},
                                   [&] {
                                     ++told;
                                     throw std::runtime_error("the same again");
                                   });
    }
    throw std::out_of_range("the cause");
  });
  EXPECT_THROW(y.backward(), std::out_of_range);
  EXPECT_EQ(told, 2);
}

// A parameter's memory is taken away after forward and restored at another address before backward,
// as sharding does.
TEST(Autograd, GradientsAreRightWhenAParametersMemoryMovedMeanwhile) {
  const Tensor weight = values({3, 4}, 1);
  const Tensor x = leaf({2, 4}, 2);
  Tensor whole = leaf({3, 4}, 1);
  testing::weighted_sum(linear(x, reshape(whole, {3, 4}))).backward();
  const Numbers wanted_weight = whole.grad().to_vector();
  const Numbers wanted_x = x.grad().to_vector();

  const auto storage = Storage::lent(weight.bytes(), Device::cpu(), "the layer");
  Tensor moving = Tensor::view_of(storage, 0, {3, 4}, float64).set_requires_grad(true);
  EXPECT_THROW((void)moving.data(), std::logic_error);
  Tensor first = weight.clone();
  storage->attach(first.data());
  const Tensor y = leaf({2, 4}, 2);
  const Tensor loss = testing::weighted_sum(linear(y, reshape(moving, {3, 4})));
  storage->detach();
  for (double& value : std::span(first.data_as<double>(), 12)) value = -1e30;
  Tensor second = weight.clone();
  storage->attach(second.data());
  loss.backward();
  storage->detach();
  EXPECT_EQ(moving.grad().to_vector(), wanted_weight);
  EXPECT_EQ(y.grad().to_vector(), wanted_x);
}

}  // namespace
}  // namespace tessera

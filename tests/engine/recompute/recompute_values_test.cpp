// A recomputed function computes from the same values in its second run, or backward is refused:
// inputs, what the function captured, and buffers, however they are read.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "engine/autograd.h"
#include "engine/nn/convolution_layers.h"
#include "engine/ops.h"
#include "engine/recompute.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"

namespace tessera {
namespace {

using testing::misuse_of;

Tensor ones(const Shape& shape = {2}) {
  return Tensor::full(shape, 1);
}
Tensor variable() {
  return ones().set_requires_grad(true);
}

// Backward after `write` is refused, for y = recompute(function, x).
template <class Function, class Write>
std::string refusal_after(Function function, const Tensor& x, Write write) {
  const Tensor loss = sum(recompute(function, x));
  write();
  return misuse_of([&] { loss.backward(); });
}

void expect_stale(const std::string& message, const std::string& op) {
  EXPECT_EQ(message.find(op + ": a tensor of shape [2], which a recomputed function reads, has "
                              "been written since the forward"),
            0u)
      << message;
}

TEST(RecomputeValues, CapturedTensorsMustNotChange) {
  const Tensor p = variable(), x = ones();
  Tensor t = ones();
  const auto write = [&] { t.copy_from(Tensor::full({2}, 10)); };
  expect_stale(refusal_after([&](const Tensor& z) { return z * p * t; }, x, write), "multiply");
  // Through values without a gradient, copies, views and masks.
  const auto derived = [&](const Tensor& z) { return z * p * exp(t.clone() + 1.0); };
  expect_stale(refusal_after(derived, x, write), "clone");
  const auto viewed = [&](const Tensor& z) { return z * p * reshape(reshape(t, {1, 2}), {2}); };
  EXPECT_NE(refusal_after(viewed, x, write).find("has been written since"), std::string::npos);
  const auto masked = [&](const Tensor& z) { return where(less(t, 2), z * p, z * p * p); };
  expect_stale(refusal_after(masked, x, write), "less");
  Tensor ids = Tensor::from(std::vector<std::int32_t>{0, 1}, {2});
  const auto looked_up = [&](const Tensor& z) { return z * index_select(p, 0, ids); };
  expect_stale(refusal_after(looked_up, x,
                             [&] { ids.copy_from(Tensor::full({2}, 0, int32, Device::cpu())); }),
               "embedding");
}

TEST(RecomputeValues, InputsMustNotChange) {
  const Tensor p = variable();
  Tensor x = ones();
  const auto write = [&] { x.copy_from(Tensor::full({2}, 10)); };
  expect_stale(refusal_after([&](const Tensor& z) { return z * p; }, x, write), "multiply");
}

TEST(RecomputeValues, WhatNoBackwardReadsMayChange) {
  const Tensor p = variable();
  Tensor t = ones();
  const Tensor loss = sum(recompute([&](const Tensor& z) { return z * p + t; }, ones()));
  t.copy_from(Tensor::full({2}, 10));
  loss.backward();
  EXPECT_EQ(p.grad().to_vector(), (std::vector<double>{1, 1}));
}

TEST(RecomputeValues, AFunctionsOwnTensorsMayChange) {
  const Tensor p = variable();
  const auto own = [&](const Tensor& z) {
    Tensor t = ones();
    const Tensor first = z * p + t;
    t.copy_from(Tensor::full({2}, 3));
    return tanh(first + t);
  };
  const Tensor plain = sum(own(ones()));
  plain.backward();
  const std::vector<double> expected = p.grad().to_vector();
  p.impl()->grad_ready = false;
  sum(recompute(own, ones())).backward();
  EXPECT_EQ(p.grad().to_vector(), expected);
}

// Reads its buffer, and writes it before or after that.
class Scaled : public nn::Module {
 public:
  enum class Order : std::uint8_t { read, read_then_write, write_then_read, update };
  explicit Scaled(Order order) : order_(order) {
    weight_ = register_parameter("weight", ones());
    register_buffer("scale", ones());
  }
  Tensor forward(const Tensor& x) {
    const auto write = [&] { set_buffer("scale", buffer("scale") * 2.0); };
    if (order_ == Order::write_then_read) write();
    Tensor y = x * weight_;
    if (order_ != Order::update) y = y * buffer("scale").clone();
    if (order_ == Order::read_then_write || order_ == Order::update) write();
    return y;
  }
  [[nodiscard]] Tensor weight() const { return weight_; }

 private:
  Order order_;
  Tensor weight_;
};

Tensor recomputed(Scaled& module) {
  return sum(recompute([&](const Tensor& x) { return module.forward(x); }, ones()));
}

TEST(RecomputeValues, ABufferThatIsReadAndThenWrittenIsRefusedAtOnce) {
  Scaled module(Scaled::Order::read_then_write);
  const std::string message = misuse_of([&] { (void)recomputed(module); });
  EXPECT_EQ(message.find("clone: a tensor of shape [2], which a recomputed function reads, has "
                         "been written by the function after that"),
            0u)
      << message;
}

TEST(RecomputeValues, ABufferThatIsWrittenAndThenReadIsRight) {
  Scaled module(Scaled::Order::write_then_read);
  for (const double expected : {2.0, 4.0}) {
    recomputed(module).backward();
    EXPECT_EQ(module.weight().grad().to_vector(), (std::vector<double>{expected, expected}));
    module.weight().impl()->grad_ready = false;
  }
  // A second forward writes it again.
  const Tensor first = recomputed(module);
  (void)recomputed(module);
  EXPECT_NE(misuse_of([&] { first.backward(); }).find("has been written since the forward"),
            std::string::npos);
}

TEST(RecomputeValues, ABufferThatIsOnlyUpdatedMayBeUpdatedAgain) {
  Scaled module(Scaled::Order::update);
  const Tensor first = recomputed(module), second = recomputed(module);
  first.backward();
  second.backward();
  EXPECT_EQ(module.weight().grad().to_vector(), (std::vector<double>{2, 2}));
}

TEST(RecomputeValues, BatchNormsStatisticsMustBeThoseOfTheForward) {
  nn::BatchNorm norm(2);
  const Tensor x = Tensor::from({1.f, 2.f, 3.f, 5.f}, {2, 2}).set_requires_grad(true);
  norm->eval();
  const Tensor evaluated = sum(recompute([&](const Tensor& z) { return norm(z) * z; }, x));
  norm->train();
  {
    const NoGradGuard no_grad;
    (void)norm(x);
  }
  norm->eval();
  EXPECT_NE(misuse_of([&] { evaluated.backward(); }).find("has been written since the forward"),
            std::string::npos);
  // In training it reads those of the batch.
  norm->train();
  const Tensor first = sum(recompute([&](const Tensor& z) { return norm(z) * z; }, x));
  const Tensor second = sum(recompute([&](const Tensor& z) { return norm(z) * z; }, x));
  first.backward();
  second.backward();
}

}  // namespace
}  // namespace tessera

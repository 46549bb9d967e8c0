// Operators with numbers, lists of values, and inferred sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/ops.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;

struct WithNumber {
  const char* name;
  std::function<Tensor(const Tensor&)> op;
  std::function<double(double)> value;
  std::function<double(double)> derivative;
};

std::vector<WithNumber> operators() {
  return {
      {"-x", [](const Tensor& x) { return -x; }, [](double x) { return -x; },
       [](double) { return -1.0; }},
      {"x + 1.5", [](const Tensor& x) { return x + 1.5; }, [](double x) { return x + 1.5; },
       [](double) { return 1.0; }},
      {"1.5 + x", [](const Tensor& x) { return 1.5 + x; }, [](double x) { return x + 1.5; },
       [](double) { return 1.0; }},
      {"x - 1.5", [](const Tensor& x) { return x - 1.5; }, [](double x) { return x - 1.5; },
       [](double) { return 1.0; }},
      {"1.5 - x", [](const Tensor& x) { return 1.5 - x; }, [](double x) { return 1.5 - x; },
       [](double) { return -1.0; }},
      {"x * 3", [](const Tensor& x) { return x * 3; }, [](double x) { return x * 3; },
       [](double) { return 3.0; }},
      {"3 * x", [](const Tensor& x) { return 3 * x; }, [](double x) { return x * 3; },
       [](double) { return 3.0; }},
      {"x / 4.0", [](const Tensor& x) { return x / 4.0; }, [](double x) { return x / 4; },
       [](double) { return 0.25; }},
      {"2.f / x", [](const Tensor& x) { return 2.f / x; }, [](double x) { return 2 / x; },
       [](double x) { return -2 / (x * x); }},
  };
}

// The values are exact in every dtype, and so are the results.
TEST(Operators, WithNumbersInEveryDtype) {
  const Doubles numbers{0.5, -2, 1, 4};
  for (const auto& [name, op, value, derivative] : operators()) {
    for (const DType dtype : {float32, bfloat16, float16, float64}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(dtype)));
      Tensor x = cast(Tensor::from(numbers, {4}), dtype);
      x.set_requires_grad(true);
      const Tensor y = op(x);
      EXPECT_EQ(y.dtype(), dtype);
      Doubles wanted, slopes;
      for (const double number : numbers) {
        wanted.push_back(value(number));
        slopes.push_back(derivative(number));
      }
      EXPECT_EQ(y.to_vector(), wanted);
      sum(y).backward();
      EXPECT_EQ(x.grad().to_vector(), slopes);
    }
  }
}

TEST(Operators, KeepTheSignOfZero) {
  const Tensor zeros = Tensor::from({0.0f, -0.0f}, {2});
  const auto negative = [](const Tensor& x) {
    return std::vector<bool>{std::signbit(x.to_vector()[0]), std::signbit(x.to_vector()[1])};
  };
  EXPECT_EQ(negative(-zeros), (std::vector<bool>{true, false}));
  EXPECT_EQ(negative(zeros * 2.0), (std::vector<bool>{false, true}));
  EXPECT_EQ(negative(zeros / 2.0), (std::vector<bool>{false, true}));
}

TEST(Operators, KeepOnlyTensorsThatBackwardReads) {
  Tensor hidden = relu(Tensor::full({4}, 1).set_requires_grad(true));
  const Tensor y = -(2.0 - (hidden / 2.0 - 1.0) * 3.0);
  const std::weak_ptr<Storage> storage = hidden.storage();
  hidden = {};
  EXPECT_TRUE(storage.expired());
}

TEST(TensorFrom, TakesAListOfValues) {
  const Tensor floats = Tensor::from({1.f, 2.f, 3.f, 4.f}, {2, 2});
  EXPECT_EQ(floats.dtype(), float32);
  EXPECT_EQ(floats.to_vector(), (Doubles{1, 2, 3, 4}));
  EXPECT_EQ(Tensor::from({1.0, 2.0}, {2}).dtype(), float64);
  EXPECT_EQ(Tensor::from({1, 2}, {2}).dtype(), int32);
  EXPECT_THROW((void)Tensor::from({1.f, 2.f}, {3}), std::logic_error);
}

TEST(Reshape, InfersOneSize) {
  Tensor x = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {2, 3}).set_requires_grad(true);
  EXPECT_EQ(reshape(x, {-1}).shape(), (Shape{6}));
  EXPECT_EQ(reshape(x, {3, -1}).shape(), (Shape{3, 2}));
  EXPECT_EQ(reshape(x, {-1, 1, 2}).shape(), (Shape{3, 1, 2}));
  EXPECT_EQ(reshape(Tensor::full({1}, 2), {}).shape(), Shape{});
  EXPECT_EQ(reshape(Tensor::empty({0, 3}), {-1, 3}).shape(), (Shape{0, 3}));
  sum(square(reshape(x, {3, -1}))).backward();
  EXPECT_EQ(x.grad().to_vector(), (Doubles{2, 4, 6, 8, 10, 12}));
  const auto refusal = [](const std::function<void()>& action) {
    try {
      action();
    } catch (const std::logic_error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_EQ(refusal([&] {
              (void)reshape(x, {4, -1});
            }),
            "reshape of [2, 3] into [4, -1]: 6 elements do not divide over 4");
  EXPECT_EQ(refusal([&] {
              (void)reshape(x, {-1, -1});
            }),
            "reshape: one size may be -1; [-1, -1] has two of them");
  EXPECT_EQ(refusal([&] {
              (void)reshape(Tensor::empty({0}), {0, -1});
            }),
            "reshape of [0] into [0, -1]: 0 elements do not divide over 0");
  EXPECT_EQ(refusal([&] {
              (void)reshape(x, {4, 2});
            }),
            "reshape of [2, 3] into [4, 2]: 6 elements are not 8");
  EXPECT_THROW((void)reshape(x, {-2, 3}), std::logic_error);
}

// PyTorch's loss is NaN there; here a rank without targets adds nothing.
TEST(CrossEntropy, IsZeroWhereNoTargetCounts) {
  const Tensor targets = Tensor::from({-100, -100}, {2});
  Tensor logits = Tensor::from({1.f, 2.f, 3.f, 4.f}, {2, 2}).set_requires_grad(true);
  const Tensor loss = cross_entropy(logits, targets);
  EXPECT_EQ(loss.item(), 0);
  loss.backward();
  EXPECT_EQ(logits.grad().to_vector(), (Doubles{0, 0, 0, 0}));
  Tensor weight = Tensor::from({1.f, 2.f, 3.f, 4.f}, {2, 2}).set_requires_grad(true);
  const Tensor fused = linear_cross_entropy(logits.detach(), weight, targets);
  EXPECT_EQ(fused.item(), 0);
  fused.backward();
  EXPECT_EQ(weight.grad().to_vector(), (Doubles{0, 0, 0, 0}));
}

}  // namespace
}  // namespace tessera

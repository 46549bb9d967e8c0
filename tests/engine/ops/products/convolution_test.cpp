// Convolutions: parts of a batch, 16-bit gradients, empty batches, refusals. Values and gradients
// are compared with torch's in torch_reference_test.cpp.
#include "engine/ops/products/convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/autograd.h"
#include "engine/tensor_ops.h"
#include "tests/support/errors.h"

namespace tessera {
namespace {

using testing::misuse_of;

Tensor numbers(const Shape& shape, double seed, DType dtype = float32) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::sin(12.9898 * static_cast<double>(i + 1) + seed));
  }
  return cast(Tensor::from(values, shape), dtype).clone();
}

// 9 MiB of columns a sample: five samples are three and two.
TEST(Convolution, PartsOfABatchHaveTheBitsOfSamplesAlone) {
  Tensor x = numbers({5, 64, 64, 64}, 1), weight = numbers({8, 64, 3, 3}, 2);
  x.set_requires_grad(true);
  weight.set_requires_grad(true);
  const Convolution2dOptions options{.padding = 1};
  const Tensor out = conv2d(x, weight, {}, options);
  const Tensor dout = numbers(out.shape(), 3);
  out.backward(dout);
  Tensor sum = Tensor::zeros(weight.shape());
  for (std::int64_t sample = 0; sample < 5; ++sample) {
    Tensor one = narrow(x.detach(), 0, sample, 1).clone(), same = weight.detach().clone();
    one.set_requires_grad(true);
    same.set_requires_grad(true);
    const Tensor alone = conv2d(one, same, {}, options);
    EXPECT_EQ(alone.to_vector(), narrow(out.detach(), 0, sample, 1).to_vector()) << sample;
    alone.backward(narrow(dout, 0, sample, 1).clone());
    EXPECT_EQ(one.grad().to_vector(), narrow(x.grad(), 0, sample, 1).to_vector()) << sample;
    sum = sum + same.grad();
  }
  // The gradient of a weight sums 20,480 products: an error is measured against the sum of their
  // magnitudes, which is larger than that of the result.
  const auto exact_gradient = [&](const auto& change) {
    Tensor wide = cast(weight.detach(), float64).clone();
    wide.set_requires_grad(true);
    conv2d(change(cast(x.detach(), float64)), wide, {}, options)
        .backward(change(cast(dout, float64)));
    return wide.grad().to_vector();
  };
  const std::vector<double> exact = exact_gradient([](const Tensor& t) { return t; });
  const std::vector<double> magnitudes = exact_gradient([](const Tensor& t) { return abs(t); });
  const std::vector<double> apart = sum.to_vector(), got = weight.grad().to_vector();
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], exact[i], 1e-5 * magnitudes[i]) << i;
    ASSERT_NEAR(apart[i], exact[i], 1e-5 * magnitudes[i]) << i;
  }
}

TEST(Convolution, WeightGradientsOf16BitsAreRoundedOnce) {
  for (const DType dtype : {bfloat16, float16}) {
    Tensor weight = numbers({3, 2, 3}, 2, dtype);
    weight.set_requires_grad(true);
    const Tensor x = numbers({20, 2, 30}, 1, dtype);
    const Tensor out = conv1d(x, weight);
    const Tensor dout = numbers(out.shape(), 3, dtype);
    out.backward(dout);
    Tensor exact = cast(weight.detach(), float64).clone();
    exact.set_requires_grad(true);
    conv1d(cast(x, float64), exact).backward(cast(dout, float64));
    const std::vector<double> wanted = exact.grad().to_vector(), got = weight.grad().to_vector();
    const double half_ulp = dtype == bfloat16 ? 0x1p-9 : 0x1p-12;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], wanted[i], 1.01 * half_ulp * 2 * std::abs(wanted[i]) + 1e-5) << i;
    }
  }
}

TEST(Convolution, GradientsAddToThoseOfEarlierBackwards) {
  for (const DType dtype : {float32, bfloat16}) {
    Tensor x = numbers({2, 3, 4, 4}, 1, dtype), weight = numbers({2, 3, 2, 2}, 2, dtype);
    x.set_requires_grad(true);
    weight.set_requires_grad(true);
    sum(conv2d(x, weight)).backward();
    const std::vector<double> once_x = x.grad().to_vector(), once = weight.grad().to_vector();
    sum(conv2d(x, weight)).backward();
    const std::vector<double> twice_x = x.grad().to_vector(), twice = weight.grad().to_vector();
    // A sum and its double are rounded to the dtype, or summed from another beginning.
    const double bound = dtype == bfloat16 ? 0x1p-7 : 4e-6;
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_NEAR(twice[i], 2 * once[i], bound * std::abs(once[i])) << i;
    }
    for (std::size_t i = 0; i < once_x.size(); ++i) {
      EXPECT_NEAR(twice_x[i], 2 * once_x[i], bound * std::abs(once_x[i])) << i;
    }
  }
}

TEST(Convolution, ABatchWithoutSamplesHasGradientsOfZero) {
  for (const DType dtype : {float32, bfloat16}) {
    Tensor x = Tensor::zeros({0, 3, 4, 4}, dtype), weight = numbers({2, 3, 2, 2}, 2, dtype);
    x.set_requires_grad(true);
    weight.set_requires_grad(true);
    const Tensor out = conv2d(x, weight);
    EXPECT_EQ(out.shape(), (Shape{0, 2, 3, 3}));
    sum(out).backward();
    EXPECT_EQ(weight.grad().to_vector(), std::vector<double>(24, 0.0));
  }
}

TEST(GroupNorm, SixteenBitsAreRoundedOnce) {
  const Tensor x = numbers({2, 4, 5}, 1, bfloat16);
  const Tensor gamma = numbers({4}, 2, bfloat16), beta = numbers({4}, 3, bfloat16);
  const Tensor y = group_norm(x, 2, gamma, beta);
  EXPECT_EQ(y.dtype(), bfloat16);
  const Tensor exact = group_norm(cast(x, float64), 2, cast(gamma, float64), cast(beta, float64));
  EXPECT_EQ(y.to_vector(), cast(cast(exact, float32), bfloat16).to_vector());
  // As other layers, it takes inputs of any floating dtype.
  EXPECT_EQ(group_norm(cast(x, float32), 2, gamma, beta).to_vector(), y.to_vector());
}

TEST(Convolution, RefusalsNameTheShapesAndTheRule) {
  const Tensor x = Tensor::zeros({2, 4, 5, 5}), w = Tensor::zeros({6, 4, 3, 3});
  EXPECT_EQ(
      misuse_of([&] {
        (void)conv2d(x, Tensor::zeros({6, 3, 3, 3}));
      }),
      "conv2d: x of shape [2, 4, 5, 5] and weight of shape [6, 3, 3, 3] with 1 groups; x must "
      "have the weight's channels (3) times the groups, and the groups divide the outputs "
      "(6)");
  EXPECT_EQ(misuse_of([&] { (void)conv1d(x, w); }),
            "conv1d: x of shape [2, 4, 5, 5] and weight of shape [6, 4, 3, 3]; both need 3 "
            "dimensions: [samples, channels, ..] and [outputs, channels / groups, ..]");
  EXPECT_EQ(misuse_of([&] { (void)conv2d(x, w, {}, {.dilation = 3}); }),
            "conv2d: x of shape [2, 4, 5, 5] with padding 0 has 5 elements in a dimension in which "
            "the kernel of weight [6, 4, 3, 3] with dilation 3 reads 7");
  EXPECT_EQ(
      misuse_of([&] {
        (void)conv2d(x, w, {}, {.stride = {1, 0}});
      }),
      "conv2d: x of shape [2, 4, 5, 5] and weight of shape [6, 4, 3, 3] with stride 1x0, "
      "dilation 1x1 and padding 0x0; stride and dilation must be at least 1, the padding at least "
      "0, and all at most 2147483648");
  const Tensor line = Tensor::zeros({1, 2, 4}), kernel = Tensor::zeros({3, 2, 2});
  for (const Convolution1dOptions& options :
       {Convolution1dOptions{.dilation = std::int64_t{1} << 62}, {.padding = INT64_MAX}}) {
    const std::string refusal = misuse_of([&] { (void)conv1d(line, kernel, {}, options); });
    EXPECT_NE(refusal.find("with stride 1, dilation "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("all at most 2147483648"), std::string::npos) << refusal;
  }
  EXPECT_EQ(misuse_of([&] { (void)conv2d(x, w, Tensor::zeros({4})); }),
            "conv2d: bias of float32 [4] for 6 outputs of float32");
  EXPECT_EQ(misuse_of([&] { (void)group_norm(x, 3); }),
            "group_norm: x of shape [2, 4, 5, 5] in 3 groups; [samples, channels, ..] is needed, "
            "with channels that the groups divide, and elements");
}

}  // namespace
}  // namespace tessera

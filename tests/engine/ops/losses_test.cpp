// Losses against their formulas in fp64, far from overflow and at its edge.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "engine/tensor_ops.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;

const Doubles loss_inputs = {-2, -0.3, 0.1, 0.9, 2.5, 100};
const Doubles loss_targets = {1, 0, 0.25, 0.5, 0.75, 1};

void check_loss(const char* name,
                const std::function<Tensor(const Tensor&, const Tensor&, Reduction)>& loss,
                const std::function<double(double, double)>& exact) {
  for (const DType dtype : {float32, bfloat16, float64}) {
    const Tensor x = cast(Tensor::from(loss_inputs, {2, 3}), dtype),
                 y = cast(Tensor::from(loss_targets, {2, 3}), dtype);
    const Doubles values = x.to_vector(), wanted_targets = y.to_vector();
    const Tensor each = loss(x, y, Reduction::none);
    EXPECT_EQ(each.dtype(), dtype == float64 ? float64 : float32);
    double whole = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double wanted = exact(values[i], wanted_targets[i]);
      EXPECT_NEAR(each.to_vector()[i], wanted, 1e-5 * std::max(1.0, std::abs(wanted)))
          << name << " " << i;
      whole += wanted;
    }
    EXPECT_NEAR(loss(x, y, Reduction::sum).item(), whole, 1e-5 * std::abs(whole)) << name;
    EXPECT_NEAR(loss(x, y, Reduction::mean).item(), whole / 6, 1e-5 * std::abs(whole)) << name;
  }
}

TEST(Losses, OfPairs) {
  check_loss("mse_loss", mse_loss, [](double x, double y) { return (x - y) * (x - y); });
  check_loss("l1_loss", l1_loss, [](double x, double y) { return std::abs(x - y); });
  check_loss(
      "huber_loss",
      [](const Tensor& x, const Tensor& y, Reduction r) { return huber_loss(x, y, 0.5, r); },
      [](double x, double y) {
        const double d = std::abs(x - y);
        return d <= 0.5 ? d * d / 2 : 0.5 * (d - 0.25);
      });
  check_loss("bce_with_logits", bce_with_logits, [](double x, double y) {
    return std::max(x, 0.0) - x * y + std::log1p(std::exp(-std::abs(x)));
  });
  check_loss("kl_div", kl_div,
             [](double x, double y) { return y == 0 ? 0.0 : y * (std::log(y) - x); });
}

TEST(Losses, CrossEntropyWithSmoothingAndZ) {
  const Tensor logits = Tensor::from({1., 2., -1., 0.5, 0., 3., 9., 9., 9.}, {3, 3});
  const Tensor wanted = Tensor::from({1, 2, -100}, {3});
  const Doubles values = logits.to_vector();
  double plain = 0, smooth = 0, z = 0;
  for (std::size_t row = 0; row < 2; ++row) {
    const double* v = &values[row * 3];
    const double lse = std::log(std::exp(v[0]) + std::exp(v[1]) + std::exp(v[2]));
    plain += (lse - v[row + 1]) / 2;
    smooth += (lse - (v[0] + v[1] + v[2]) / 3) / 2;
    z += lse * lse / 2;
  }
  EXPECT_NEAR(cross_entropy(logits, wanted, CrossEntropyOptions{}).item(), plain, 1e-12);
  EXPECT_NEAR(cross_entropy(logits, wanted, CrossEntropyOptions{.label_smoothing = 0.2}).item(),
              0.8 * plain + 0.2 * smooth, 1e-12);
  EXPECT_NEAR(cross_entropy(logits, wanted, CrossEntropyOptions{.z_loss = 0.5}).item(),
              plain + 0.5 * z, 1e-12);
  const Tensor ignored = Tensor::from({-100, -100, -100}, {3});
  EXPECT_EQ(cross_entropy(logits, ignored, CrossEntropyOptions{.label_smoothing = 0.2, .z_loss = 1})
                .item(),
            0);
}

TEST(Losses, RefusalsNameTheOpTheShapesAndTheRule) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_EQ(testing::misuse_of([&] { return mse_loss(x, Tensor::zeros({3})); }),
            "mse_loss: float32 of shape [2, 3] and a target of float32 [3]; both have one shape "
            "and dtype");
  EXPECT_EQ(testing::misuse_of([&] { return huber_loss(x, x, 0); }),
            "huber_loss: delta is 0; it must be positive");
  EXPECT_EQ(testing::misuse_of([] { return l1_loss(Tensor::zeros({0}), Tensor::zeros({0})); }),
            "l1_loss: the mean over shape [0], which has no elements");
  EXPECT_EQ(testing::misuse_of([&] {
              return cross_entropy(x, Tensor::zeros({2}, int32), {.label_smoothing = 2});
            }),
            "cross_entropy: label_smoothing 2 and z_loss 0; the first is from 0 to 1, the second "
            "not negative");
}

}  // namespace
}  // namespace tessera

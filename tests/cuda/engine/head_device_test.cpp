// The head and its loss on a GPU: compared with whole logits, for chunks of several sizes, and its
// memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/engine/engine_testing.h"
#include "engine/autograd.h"
#include "engine/device/memory.h"
#include "engine/ops.h"
#include "engine/recompute.h"
#include "support/gradient_check.h"

namespace tessera {
namespace {

using testing::gpu;
using testing::values;

constexpr std::int64_t rows = 300, vocabulary = 211, width = 24;

// Some rows are ignored.
Tensor targets_of_rows() {
  std::vector<std::int32_t> targets(rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    targets[static_cast<std::size_t>(r)] =
        r % 7 == 3 ? -100 : static_cast<std::int32_t>(r * 37 % vocabulary);
  }
  return Tensor::from(targets, {rows});
}

struct DeviceHead {
  Tensor x, weight, targets;

  DeviceHead(DType dtype, Device device)
      : x(cast(values({rows, width}, 1, -1.5, 1.5), dtype).to(device)),
        weight(cast(values({vocabulary, width}, 2, -1.5, 1.5), dtype).to(device)),
        targets(targets_of_rows().to(device)) {
    x.set_requires_grad(true);
    weight.set_requires_grad(true);
  }
};

struct HeadResult {
  std::vector<double> loss, dx, dweight;
};

template <class Loss>
HeadResult result_of(DeviceHead& head, const Loss& loss_of, double factor = 1) {
  const Tensor loss = loss_of(head);
  loss.backward(Tensor::full({}, factor, loss.dtype(), loss.device()));
  return {loss.to_vector(), head.x.grad().to_vector(), head.weight.grad().to_vector()};
}

Tensor whole_logits(DeviceHead& head) {
  return cross_entropy(linear(head.x, head.weight), head.targets);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

void expect_close(const std::vector<double>& out, const std::vector<double>& low,
                  const std::vector<double>& exact, DType dtype, const char* what) {
  double size = 0;
  for (const double value : exact) size = std::max(size, std::abs(value));
  EXPECT_LE(largest_difference(out, exact),
            2 * largest_difference(low, exact) + (dtype == float64 ? 1e-13 : 1e-6) * size)
      << what;
}

TEST(DeviceHead, IsCrossEntropyOfWholeLogitsForEveryChunk) {
  for (const DType dtype : {float64, float32, bfloat16, float16}) {
    SCOPED_TRACE(name_of(dtype));
    // The exact results of the rounded inputs, and those of a plain computation.
    DeviceHead low_head(dtype, Device::cpu()), exact_head(dtype, Device::cpu());
    exact_head.x = cast(exact_head.x.detach(), float64).clone().set_requires_grad(true);
    exact_head.weight = cast(exact_head.weight.detach(), float64).clone().set_requires_grad(true);
    const HeadResult exact = result_of(exact_head, whole_logits);
    const HeadResult low = result_of(low_head, whole_logits);
    for (const std::int64_t chunk : {0, 1, 64, 299, 1000}) {
      SCOPED_TRACE(chunk);
      DeviceHead head(dtype, gpu);
      const HeadResult out = result_of(head, [&](DeviceHead& h) {
        return linear_cross_entropy(h.x, h.weight, h.targets, {.chunk_rows = chunk});
      });
      expect_close(out.loss, low.loss, exact.loss, dtype, "loss");
      expect_close(out.dx, low.dx, exact.dx, dtype, "dx");
      expect_close(out.dweight, low.dweight, exact.dweight, dtype, "dweight");
    }
  }
}

// One row with equal logits: each probability is 2e-5, which float16 holds to 0.15 % only; the
// scaled gradient has float16's precision.
TEST(DeviceHead, SmallProbabilitiesKeepFloat16sPrecision) {
  constexpr std::int64_t many = 50'000;
  Tensor x = Tensor::full({1, 8}, 1, float16, gpu).set_requires_grad(true);
  Tensor weight = Tensor::zeros({many, 8}, float16, gpu).set_requires_grad(true);
  const Tensor target = Tensor::full({1}, 0, int32, gpu);
  linear_cross_entropy(x, weight, target).backward(Tensor::full({}, 65536, float32, gpu));
  const std::vector<double> dweight = weight.grad().to_vector();
  for (std::size_t i = 8; i < dweight.size(); ++i) {
    ASSERT_NEAR(dweight[i], 65536.0 / many, 65536.0 / many * 0x1p-10) << i;
  }
}

// The factor of the loss is known only in the backward; a power of two changes no bit otherwise.
TEST(DeviceHead, GradientsHaveTheFactorOfTheLossAndAreAdded) {
  DeviceHead once(float32, gpu), twice(float32, gpu);
  const auto loss_of = [](DeviceHead& h) { return linear_cross_entropy(h.x, h.weight, h.targets); };
  const HeadResult expected = result_of(once, loss_of, 0.5);
  (void)result_of(twice, loss_of, 0.25);
  const HeadResult sum = result_of(twice, loss_of, 0.25);
  EXPECT_EQ(sum.dx, expected.dx);
  EXPECT_EQ(sum.dweight, expected.dweight);
}

TEST(DeviceHead, AKeptGraphGivesTheSameGradientsAgain) {
  DeviceHead head(bfloat16, gpu);
  const Tensor loss = linear_cross_entropy(head.x, head.weight, head.targets);
  loss.backward(Tensor::full({}, 0.7, loss.dtype(), gpu), true);
  const std::vector<double> dx = head.x.grad().to_vector(),
                            dweight = head.weight.grad().to_vector();
  head.x.zero_grad();
  head.weight.zero_grad();
  loss.backward(Tensor::full({}, 0.7, loss.dtype(), gpu));
  EXPECT_EQ(head.x.grad().to_vector(), dx);
  EXPECT_EQ(head.weight.grad().to_vector(), dweight);
}

TEST(DeviceHead, IsTheSameInARecomputedFunction) {
  DeviceHead plain(float32, gpu), again(float32, gpu);
  const HeadResult expected = result_of(
      plain, [](DeviceHead& h) { return linear_cross_entropy(h.x, h.weight, h.targets); });
  const HeadResult result = result_of(again, [](DeviceHead& h) {
    return recompute([h](const Tensor& x) { return linear_cross_entropy(x, h.weight, h.targets); },
                     h.x);
  });
  EXPECT_EQ(result.loss, expected.loss);
  EXPECT_EQ(result.dx, expected.dx);
  EXPECT_EQ(result.dweight, expected.dweight);
}

// The formula of rows.cpp: a chunk of logits, and the gradients that are wanted, in fp32.
TEST(DeviceHead, TakesAChunkAndTheGradientsThatAreWanted) {
  constexpr std::int64_t chunk = 64;
  constexpr std::size_t padded = 224 * sizeof(float), numbers = 16 * 1024;
  constexpr std::size_t dx = rows * width * sizeof(float),
                        dweight = vocabulary * width * sizeof(float);
  const auto& pool = MemoryPool::current(gpu);
  const auto peak = [&](bool wants_x, bool wants_weight) {
    DeviceHead head(bfloat16, gpu);
    head.x.set_requires_grad(wants_x);
    head.weight.set_requires_grad(wants_weight);
    pool->trim();
    const std::size_t before = pool->stats().in_use;
    pool->reset_peak();
    (void)linear_cross_entropy(head.x, head.weight, head.targets, {.chunk_rows = chunk});
    return pool->stats().peak_in_use - before;
  };
  EXPECT_LE(peak(false, false), chunk * padded + numbers);
  EXPECT_LE(peak(true, false), chunk * padded * 3 / 2 + dx + numbers);
  EXPECT_LE(peak(false, true), chunk * padded * 3 / 2 + dweight + numbers);
  EXPECT_LE(peak(true, true), chunk * padded * 3 / 2 + dx + dweight + numbers);
  EXPECT_GE(peak(true, true), chunk * padded * 3 / 2 + dx + dweight);
}

}  // namespace
}  // namespace tessera

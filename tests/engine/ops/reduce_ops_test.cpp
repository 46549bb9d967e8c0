// Reductions over dimensions against sums that the test writes out in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "engine/tensor_ops.h"
#include "support/errors.h"

namespace tessera {
namespace {

using Doubles = std::vector<double>;
constexpr double endless = std::numeric_limits<double>::infinity();

Tensor draws(const Shape& shape, unsigned seed, DType dtype) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.5, 1);
  Doubles values(static_cast<std::size_t>(shape.elements()));
  for (double& value : values) value = normal(generator);
  return cast(Tensor::from(values, shape), dtype);
}

// The values over which each result is computed, result by result.
std::vector<Doubles> groups_of(const Tensor& x, const std::vector<bool>& reduced) {
  const Doubles values = x.to_vector();
  std::int64_t results = 1;
  for (int d = 0; d < x.dimensions(); ++d)
    results *= reduced[static_cast<std::size_t>(d)] ? 1 : x.size(d);
  std::vector<Doubles> groups(static_cast<std::size_t>(results));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t rest = static_cast<std::int64_t>(i), group = 0, stride = 1;
    for (int d = x.dimensions() - 1; d >= 0; --d) {
      if (!reduced[static_cast<std::size_t>(d)]) {
        group += rest % x.size(d) * stride;
        stride *= x.size(d);
      }
      rest /= x.size(d);
    }
    groups[static_cast<std::size_t>(group)].push_back(values[i]);
  }
  return groups;
}

double sum_of(const Doubles& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}
double variance_of(const Doubles& values) {
  const double mean = sum_of(values) / static_cast<double>(values.size());
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return squares / static_cast<double>(values.size() - 1);
}
double logsumexp_of(const Doubles& values) {
  double sum = 0;
  for (const double value : values) sum += std::exp(value);
  return std::log(sum);
}
double norm_of(const Doubles& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

void check_reduction(const char* name, const Tensor& result, const std::vector<Doubles>& groups,
                     const std::function<double(const Doubles&)>& exact) {
  const Doubles got = result.to_vector();
  ASSERT_EQ(got.size(), groups.size()) << name;
  const double rounding = result.dtype() == float64    ? 1e-13
                          : result.dtype() == float32  ? 1e-5
                          : result.dtype() == bfloat16 ? 0x1p-8
                                                       : 0x1p-10;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double wanted = exact(groups[i]);
    EXPECT_NEAR(got[i], wanted, rounding * std::max(1.0, std::abs(wanted))) << name << " " << i;
  }
}

TEST(ReduceOps, OverEveryChoiceOfDimensionsInEveryDtype) {
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    const Tensor x = draws({3, 5, 4, 7}, 1, dtype);
    for (unsigned chosen = 1; chosen < 16; ++chosen) {
      std::vector<bool> reduced(4);
      std::vector<int> dimensions;
      for (int d = 0; d < 4; ++d) {
        reduced[static_cast<std::size_t>(d)] = (chosen >> d & 1) != 0;
        if (reduced[static_cast<std::size_t>(d)]) dimensions.push_back(d - 4 * (d % 2));
      }
      const std::vector<Doubles> groups = groups_of(x, reduced);
      const bool keep = chosen % 2 == 0;
      const Tensor sums = sum(x, dimensions, keep);
      EXPECT_EQ(sums.dimensions(), keep ? 4 : 4 - static_cast<int>(dimensions.size()));
      check_reduction("sum", sums, groups, sum_of);
      check_reduction("mean", mean(x, dimensions, keep), groups,
                      [](const Doubles& v) { return sum_of(v) / static_cast<double>(v.size()); });
      check_reduction("max", max(x, dimensions, keep), groups,
                      [](const Doubles& v) { return *std::max_element(v.begin(), v.end()); });
      check_reduction("min", min(x, dimensions, keep), groups,
                      [](const Doubles& v) { return *std::min_element(v.begin(), v.end()); });
      check_reduction("variance", variance(x, dimensions, 1, keep), groups, variance_of);
      check_reduction("logsumexp", logsumexp(x, dimensions, keep), groups, logsumexp_of);
      check_reduction("norm", norm(x, 2, dimensions, keep), groups, norm_of);
    }
  }
}

// Rows and columns that are longer than the kernels' chunks and blocks.
TEST(ReduceOps, LongRowsAndColumns) {
  const Tensor rows = draws({3, 10001}, 2, float32);
  check_reduction("sum", sum(rows, 1), groups_of(rows, {false, true}), sum_of);
  const Tensor columns = draws({999, 517}, 3, float32);
  check_reduction("sum", sum(columns, 0), groups_of(columns, {true, false}), sum_of);
  check_reduction("max", max(columns, 0), groups_of(columns, {true, false}),
                  [](const Doubles& v) { return *std::max_element(v.begin(), v.end()); });
}

TEST(ReduceOps, PlacesAreTheFirstAndNanWins) {
  const double nan = std::nan("");
  const Tensor x = Tensor::from({1., 3., 3., 0., nan, 2., 5., nan, 0., 0., 0., -1.}, {3, 4});
  EXPECT_EQ(argmax(x).to_vector(), (Doubles{1, 0, 0}));
  EXPECT_EQ(argmin(x).to_vector(), (Doubles{3, 0, 3}));
  EXPECT_EQ(argmax(x, 0).to_vector(), (Doubles{1, 0, 1, 1}));
  EXPECT_EQ(argmin(x, 0, true).shape(), (Shape{1, 4}));
  EXPECT_TRUE(std::isnan(max(x, 1).to_vector()[1]));
  EXPECT_TRUE(std::isnan(min(x, 0).to_vector()[0]));
  EXPECT_EQ(argmax(x).dtype(), int64);
}

TEST(ReduceOps, InfiniteAndEmpty) {
  const Tensor x = Tensor::from({-endless, -endless, endless, 0.}, {2, 2});
  EXPECT_EQ(logsumexp(x, 1).to_vector(), (Doubles{-endless, endless}));
  EXPECT_EQ(sum(Tensor::zeros({2, 0}), 1).to_vector(), (Doubles{0, 0}));
  EXPECT_EQ(sum(Tensor::zeros({2, 0}), 0).elements(), 0);
  EXPECT_EQ(max(Tensor::zeros({0, 3}), 1).elements(), 0);
  EXPECT_EQ(sum(Tensor::scalar(4), {}).item(), 4);
  EXPECT_EQ(cumulative_sum(Tensor::zeros({0, 3}), 0).elements(), 0);
}

TEST(ReduceOps, RunningSums) {
  const Tensor x = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {2, 3});
  EXPECT_EQ(cumulative_sum(x, 1).to_vector(), (Doubles{1, 3, 6, 4, 9, 15}));
  EXPECT_EQ(cumulative_sum(x, 0).to_vector(), (Doubles{1, 2, 3, 5, 7, 9}));
  // Each is rounded once: sums in bf16 would stay at 256.
  EXPECT_EQ(cumulative_sum(Tensor::full({1024}, 1, bfloat16), 0).to_vector().back(), 1024);
}

TEST(ReduceOps, SoftmaxOverAnyDimension) {
  const Tensor x = draws({3, 4, 5}, 4, float32);
  for (const int dimension : {0, 1, 2}) {
    check_reduction("softmax", sum(softmax(x, dimension), dimension),
                    groups_of(sum(x, dimension), {false, false}),
                    [](const Doubles&) { return 1.0; });
    const Doubles one = log_softmax(x, dimension).to_vector(),
                  other = log(softmax(x, dimension)).to_vector();
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 2e-6);
  }
  const Tensor far = log_softmax(Tensor::from({1000.f, 0.f}, {2}));
  EXPECT_EQ(far.to_vector(), (Doubles{0, -1000}));
}

TEST(ReduceOps, DoNotDependOnThreads) {
  const Tensor x = draws({50, 300, 40}, 5, float32);
  const auto run = [&](int threads) {
    const int before = compute_threads();
    set_compute_threads(threads);
    Doubles all = sum(x, 1).to_vector();
    for (const Tensor& more : {sum(x, 2), max(x, {0, 2}), cumulative_sum(x, 1), argmax(x, 1)}) {
      const Doubles values = more.to_vector();
      all.insert(all.end(), values.begin(), values.end());
    }
    set_compute_threads(before);
    return all;
  };
  EXPECT_EQ(run(1), run(3));
}

TEST(ReduceOps, RefusalsNameTheOpTheShapesAndTheRule) {
  const Tensor x = Tensor::zeros({2, 3});
  const auto refused = [](auto&& call) { return testing::misuse_of(call); };
  EXPECT_EQ(refused([&] { return sum(x, 2); }),
            "sum: dimension 2 of a tensor of shape [2, 3]; it is from -2 to 1");
  EXPECT_EQ(refused([&] {
              return max(x, {0, -2});
            }),
            "max: a dimension of shape [2, 3] is named twice");
  EXPECT_EQ(refused([&] {
              return mean(Tensor::zeros({2, 0}), 1);
            }),
            "mean: shape [2, 0] has no elements to average");
  EXPECT_EQ(refused([&] {
              return max(Tensor::zeros({2, 0}), 1);
            }),
            "max: shape [2, 0] has no elements to choose from");
  EXPECT_EQ(refused([&] {
              return variance(Tensor::zeros({2, 1}), 1);
            }),
            "variance: 1 elements of shape [2, 1] with a correction of 1");
  EXPECT_EQ(refused([&] { return norm(x, 0); }), "norm: p is 0; it must be positive");
}

// The gradient of what was broadcast is a sum over dimensions that need not be neighbours. In 16
// bits it is rounded once, as the sum over the same dimensions.
TEST(Reductions, AGradientOfABroadcastIsRoundedOnce) {
  const Shape whole{5, 4, 3, 7};
  for (const DType dtype : {bfloat16, float16, float32}) {
    const Tensor weights = draws(whole, 5, dtype);
    for (const Shape& part :
         {Shape{4, 1, 1}, Shape{4, 1, 7}, Shape{1, 4, 3, 1}, Shape{5, 1, 3, 1}}) {
      Tensor x = Tensor::zeros(part, dtype);
      x.set_requires_grad(true);
      sum(weights * x).backward();
      std::vector<int> repeated;
      const int extra = whole.dimensions() - part.dimensions();
      for (int i = 0; i < whole.dimensions(); ++i) {
        if (i < extra || part[i - extra] == 1) repeated.push_back(i);
      }
      const std::vector<double> exact = sum(cast(weights, float64), repeated).to_vector();
      const std::vector<double> got = x.grad().to_vector();
      ASSERT_EQ(got.size(), exact.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        const double once = cast(cast(Tensor::scalar(exact[i], float64), float32), dtype).item();
        const double ulp = dtype == float32 ? 1e-5 : 0;  // fp32 sums have their own order
        EXPECT_NEAR(got[i], once, ulp * std::abs(once) + (dtype == float32 ? 1e-6 : 0))
            << name_of(dtype) << " " << part.to_string();
      }
    }
  }
}

}  // namespace
}  // namespace tessera

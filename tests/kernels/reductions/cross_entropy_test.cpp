// Cross-entropy and softmax compared with fp64.
#include "kernels/cross_entropy.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels::testing {
namespace {

struct CrossEntropyShape {
  std::int64_t rows, dim;
};
// The last row is wider than the block in which a row is processed.
const std::vector<CrossEntropyShape> cross_entropy_shapes = {{1, 1},    {7, 31},   {33, 7},
                                                             {3, 1000}, {2, 1021}, {2, 9001}};

template <class T>
using Statistic = std::conditional_t<std::is_same_v<T, double>, double, float>;

double log_sum_exp(const std::vector<double>& x, std::int64_t start, std::int64_t n) {
  double maximum = x[static_cast<std::size_t>(start)], sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i)
    maximum = std::max(maximum, x[static_cast<std::size_t>(start + i)]);
  for (std::int64_t i = 0; i < n; ++i)
    sum += std::exp(x[static_cast<std::size_t>(start + i)] - maximum);
  return maximum + std::log(sum);
}

template <class T>
class CrossEntropyTest : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropyTest, FloatingTypes);

template <class T, class Target>
void expect_loss_and_gradient(CrossEntropyShape shape, std::int64_t padding) {
  const auto [rows, vocabulary] = shape;
  const std::int64_t stride = vocabulary + padding;
  const auto logits = normals<T>(rows * stride, 1, 3.0);
  const auto wide = doubles(logits);
  std::vector<Target> targets(static_cast<std::size_t>(rows));
  for (std::size_t r = 0; r < targets.size(); ++r) {
    targets[r] = r % 3 == 2
                     ? Target{-100}
                     : static_cast<Target>((r * 17 + 5) % static_cast<std::size_t>(vocabulary));
  }
  std::vector<double> loss(targets.size()), lse(targets.size()), gradient = wide;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    lse[row] = log_sum_exp(wide, r * stride, vocabulary);
    const bool ignored = targets[row] == -100;
    if (!ignored) loss[row] = lse[row] - wide[static_cast<std::size_t>(r * stride + targets[row])];
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      const auto at = static_cast<std::size_t>(r * stride + v);
      gradient[at] =
          ignored ? 0.0 : 0.125 * (std::exp(wide[at] - lse[row]) - (v == targets[row] ? 1.0 : 0.0));
    }
  }
  std::vector<Statistic<T>> loss_out(targets.size()), lse_out(targets.size());
  cpu::cross_entropy_forward({logits.data(), targets.data(), dtype_of<Target>, loss_out.data(),
                              lse_out.data(), rows, vocabulary, stride, -100, dtype_of<T>});
  expect_close(loss_out, loss, 30, 8.0);
  expect_close(lse_out, lse, 30, 8.0);
  auto dlogits = logits;  // in place; the padding must not change
  const Statistic<T> dloss = 0.5;
  const double inverse_count = 0.25;
  cpu::cross_entropy_backward({dlogits.data(), targets.data(), dtype_of<Target>, lse_out.data(),
                               &dloss, &inverse_count, dlogits.data(), rows, vocabulary, stride,
                               -100, dtype_of<T>});
  expect_close(dlogits, gradient, 60, 0.125);
}

TYPED_TEST(CrossEntropyTest, MatchesReference) {
  for_each_target([] {
    for (const CrossEntropyShape shape : cross_entropy_shapes) {
      SCOPED_TRACE(shape.dim);
      expect_loss_and_gradient<TypeParam, std::int32_t>(shape, 0);
      expect_loss_and_gradient<TypeParam, std::int64_t>(shape, 3);
    }
  });
}

// The results of a call for columns [first, first + columns) of rows of `vocabulary` logits.
template <class T>
struct BlockOfColumns {
  const std::vector<T>& logits;
  const std::vector<std::int32_t>& targets;
  std::int64_t rows, vocabulary;

  void forward(std::int64_t first, std::int64_t columns, std::vector<Statistic<T>>& loss,
               std::vector<Statistic<T>>& lse, std::vector<Statistic<T>>& sum) const {
    cpu::cross_entropy_forward({.logits = logits.data() + first,
                                .targets = targets.data(),
                                .target_dtype = int32,
                                .loss = loss.data(),
                                .log_sum_exp = lse.data(),
                                .rows = rows,
                                .vocabulary = vocabulary,
                                .stride = vocabulary,
                                .ignore = -100,
                                .dtype = dtype_of<T>,
                                .first = first,
                                .columns = columns,
                                .sum = sum.data()});
  }
  template <class Out>
  void backward(std::int64_t first, std::int64_t columns, const std::vector<Statistic<T>>& lse,
                std::vector<Out>& dlogits) const {
    const Statistic<T> dloss = 0.5;
    const double inverse_count = 0.25;
    cpu::cross_entropy_backward({.logits = logits.data() + first,
                                 .targets = targets.data(),
                                 .target_dtype = int32,
                                 .log_sum_exp = lse.data(),
                                 .dloss = &dloss,
                                 .inverse_count = &inverse_count,
                                 .dlogits = dlogits.data() + first,
                                 .rows = rows,
                                 .vocabulary = vocabulary,
                                 .stride = vocabulary,
                                 .ignore = -100,
                                 .dtype = dtype_of<T>,
                                 .first = first,
                                 .columns = columns,
                                 .out_dtype = dtype_of<Out>});
  }
};

TYPED_TEST(CrossEntropyTest, BlocksOfColumnsMatchTheWhole) {
  using T = TypeParam;
  constexpr std::int64_t rows = 9, vocabulary = 1021;
  const auto logits = normals<T>(rows * vocabulary, 6, 3.0);
  std::vector<std::int32_t> targets(rows, -100);
  for (std::size_t r = 0; r < 8; ++r) targets[r] = static_cast<std::int32_t>(145 * r);
  const BlockOfColumns<T> block{logits, targets, rows, vocabulary};
  for_each_target([&] {
    const std::size_t n = rows;
    std::vector<Statistic<T>> loss(n), lse(n), sum(n), whole_loss(n), whole_lse(n);
    block.forward(0, vocabulary, whole_loss, whole_lse, sum);
    std::vector<T> whole(logits.size()), dlogits(logits.size());
    block.backward(0, vocabulary, whole_lse, whole);
    for (const std::int64_t width : {1, 7, 500, 1020, 1021}) {
      for (std::int64_t first = 0; first < vocabulary; first += width) {
        block.forward(first, std::min(width, vocabulary - first), loss, lse, sum);
      }
      expect_close(loss, doubles(whole_loss), 60, 8.0);
      expect_close(lse, doubles(whole_lse), 60, 8.0);
      for (std::int64_t first = 0; first < vocabulary; first += width) {
        block.backward(first, std::min(width, vocabulary - first), whole_lse, dlogits);
      }
      expect_same_bits(dlogits, whole, "a block's gradient");
    }
  });
}

// Gradients of fp32 logits, rounded once to a 16-bit type.
template <class Out>
void expect_narrow_gradient() {
  constexpr std::int64_t rows = 5, vocabulary = 301;
  const auto logits = normals<float>(rows * vocabulary, 7, 3.0);
  const std::vector<std::int32_t> targets = {0, 300, -100, 17, 18};
  const BlockOfColumns<float> block{logits, targets, rows, vocabulary};
  for_each_target([&] {
    std::vector<float> loss(rows), lse(rows), sum(rows), wide(logits.size());
    block.forward(0, vocabulary, loss, lse, sum);
    block.backward(0, vocabulary, lse, wide);
    std::vector<Out> narrow_ones(logits.size());
    block.backward(0, vocabulary, lse, narrow_ones);
    expect_same_bits(narrow_ones, array_of<Out>(doubles(wide)), "rounded once");
  });
}

TEST(CrossEntropy, GradientsOfWideLogitsMayBeNarrow) {
  expect_narrow_gradient<BFloat16>();
  expect_narrow_gradient<Float16>();
}

TYPED_TEST(CrossEntropyTest, SoftmaxMatchesReference) {
  using T = TypeParam;
  for_each_target([] {
    for (const auto& [rows, dim] : cross_entropy_shapes) {
      const auto x = normals<T>(rows * dim, 2, 3.0);
      const auto dout = normals<T>(rows * dim, 3);
      const auto wide = doubles(x);
      std::vector<double> y(x.size()), gradient(x.size());
      std::vector<T> out(x.size());
      cpu::softmax_forward({x.data(), out.data(), rows, dim, dtype_of<T>});
      for (std::int64_t r = 0; r < rows; ++r) {
        const double lse = log_sum_exp(wide, r * dim, dim);
        double dot = 0.0;
        for (std::int64_t i = r * dim; i < (r + 1) * dim; ++i) {
          const auto at = static_cast<std::size_t>(i);
          y[at] = std::exp(wide[at] - lse);
          dot += widen(dout[at]) * widen(out[at]);
        }
        for (std::int64_t i = r * dim; i < (r + 1) * dim; ++i) {
          const auto at = static_cast<std::size_t>(i);
          gradient[at] = widen(out[at]) * (widen(dout[at]) - dot);
        }
      }
      expect_close(out, y, 60);
      auto dx = dout;
      cpu::softmax_backward({dx.data(), out.data(), dx.data(), rows, dim, dtype_of<T>});
      expect_close(dx, gradient, 40, 1.0);
      auto in_place = x;
      cpu::softmax_forward({in_place.data(), in_place.data(), rows, dim, dtype_of<T>});
      expect_same_bits(in_place, out, "in place");
    }
  });
}

TYPED_TEST(CrossEntropyTest, ThreadsChangeNoBit) {
  using T = TypeParam;
  constexpr std::int64_t rows = 67, vocabulary = 1021;
  const auto logits = normals<T>(rows * vocabulary, 4, 2.0);
  const std::vector<std::int64_t> targets(rows, 11);
  expect_thread_invariant([&] {
    std::vector<Statistic<T>> loss(rows), lse(rows);
    cpu::cross_entropy_forward({logits.data(), targets.data(), int64, loss.data(), lse.data(), rows,
                                vocabulary, vocabulary, -100, dtype_of<T>});
    std::vector<T> out(logits.size());
    Statistic<T> mean = 0;
    double inverse_count = 0;
    cpu::mean_loss({loss.data(), targets.data(), int64, &mean, &inverse_count, rows, -100,
                    dtype_of<Statistic<T>>});
    cpu::cross_entropy_backward({logits.data(), targets.data(), int64, lse.data(), &mean,
                                 &inverse_count, out.data(), rows, vocabulary, vocabulary, -100,
                                 dtype_of<T>});
    out.push_back(narrow<T>(mean));
    for (const auto value : loss) out.push_back(narrow<T>(value));
    return out;
  });
}

TEST(CrossEntropy, MaskedAndExtremeLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  for_each_target([&] {
    // A first block of only -inf, then numbers that overflow without a shift.
    std::vector<float> logits(5000, -inf);
    logits[4500] = 1000.0f;
    logits[4501] = 1000.0f;
    const std::int32_t target = 4500;
    float loss = 0, lse = 0;
    cpu::cross_entropy_forward(
        {logits.data(), &target, int32, &loss, &lse, 1, 5000, 5000, -1, float32});
    EXPECT_FLOAT_EQ(loss, std::log(2.0f));
    EXPECT_FLOAT_EQ(lse, 1000.0f + std::log(2.0f));
    std::vector<float> y(5000);
    cpu::softmax_forward({logits.data(), y.data(), 1, 5000, float32});
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_FLOAT_EQ(y[4501], 0.5f);
    for (const std::size_t where : {std::size_t{3}, std::size_t{4999}}) {
      auto bad = logits;
      bad[where] = std::numeric_limits<float>::quiet_NaN();
      cpu::cross_entropy_forward(
          {bad.data(), &target, int32, &loss, &lse, 1, 5000, 5000, -1, float32});
      EXPECT_TRUE(std::isnan(loss));
      EXPECT_TRUE(std::isnan(lse));
    }
  });
}

// Blocks of only -inf, before and after very negative numbers, whose sum would underflow with a
// shift of 0.
TEST(CrossEntropy, BlocksThatAreMasked) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> logits(12, -inf);
  logits[5] = -1000.0f;
  logits[6] = -1001.0f;
  const std::vector<std::int32_t> targets = {5};
  const BlockOfColumns<float> block{logits, targets, 1, 12};
  for_each_target([&] {
    for (const std::int64_t width : {1, 2, 3, 4, 12}) {
      std::vector<float> loss(1), lse(1), sum(1);
      for (std::int64_t first = 0; first < 12; first += width) {
        block.forward(first, width, loss, lse, sum);
      }
      EXPECT_FLOAT_EQ(loss[0], std::log1p(std::exp(-1.0f))) << width;
      EXPECT_FLOAT_EQ(lse[0], -1000.0f + std::log1p(std::exp(-1.0f))) << width;
    }
  });
}

TEST(CrossEntropy, RefusesColumnsOutsideTheVocabulary) {
  std::vector<float> values(64);
  const std::int32_t target = 0;
  const auto forward = [&](std::int64_t first, std::int64_t columns, void* sum) {
    cpu::cross_entropy_forward({.logits = values.data(),
                                .targets = &target,
                                .target_dtype = int32,
                                .loss = values.data() + 40,
                                .log_sum_exp = values.data() + 41,
                                .rows = 1,
                                .vocabulary = 16,
                                .stride = 16,
                                .ignore = -100,
                                .dtype = float32,
                                .first = first,
                                .columns = columns,
                                .sum = sum});
  };
  EXPECT_THROW(forward(9, 8, values.data() + 42), std::logic_error);
  EXPECT_THROW(forward(-1, 8, values.data() + 42), std::logic_error);
  EXPECT_THROW(forward(0, 8, nullptr), std::logic_error);
  const std::vector<double> logits(16);
  const std::vector<std::int32_t> targets = {0};
  std::vector<float> narrow_gradient(16);
  EXPECT_THROW(
      (BlockOfColumns<double>{logits, targets, 1, 16}.backward(0, 16, {0.0}, narrow_gradient)),
      std::logic_error);
}

// The scale of the gradient is a product in fp64, rounded once.
TEST(CrossEntropy, ScaleOfTheGradient) {
  const std::vector<float> logits = {0.0f, 0.0f};
  const float log_sum_exp = 0.0f;  // so that every probability is 1
  const std::int32_t target = 1;
  const float dloss = 1.0f / 3.0f;
  const double inverse_count = 1.0 / 7.0;
  std::vector<float> dlogits(2);
  cpu::cross_entropy_backward({logits.data(), &target, int32, &log_sum_exp, &dloss, &inverse_count,
                               dlogits.data(), 1, 2, 2, -100, float32});
  EXPECT_EQ(dlogits[0], static_cast<float>(inverse_count * static_cast<double>(dloss)));
  EXPECT_EQ(dlogits[1], 0.0f);
}

template <class Loss, class Target>
void expect_mean_loss(std::int64_t rows, std::int64_t ignored_rows) {
  const auto losses = normals<Loss>(rows, 5);
  std::vector<Loss> counted(losses);
  std::vector<Target> targets(losses.size(), Target{3});
  for (std::size_t row = 0; row < static_cast<std::size_t>(ignored_rows); ++row) {
    targets[row] = -100;
    counted[row] = 0;
  }
  Loss mean = -1, expected = 0;
  double inverse_count = -1;
  const std::int64_t count = rows - ignored_rows;
  const double inverse = count == 0 ? 0.0 : 1.0 / static_cast<double>(count);
  cpu::mean_loss({counted.data(), targets.data(), dtype_of<Target>, &mean, &inverse_count, rows,
                  -100, dtype_of<Loss>});
  cpu::sum_all({counted.data(), &expected, rows, dtype_of<Loss>, inverse});
  EXPECT_EQ(inverse_count, inverse);
  EXPECT_EQ(mean, expected);
}

TEST(MeanLoss, CountsTargetsThatAreNotIgnored) {
  for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{1}, std::int64_t{9000}}) {
    for (const std::int64_t ignored_rows : {std::int64_t{0}, rows / 3, rows}) {
      expect_mean_loss<float, std::int32_t>(rows, ignored_rows);
      expect_mean_loss<float, std::int64_t>(rows, ignored_rows);
      expect_mean_loss<double, std::int64_t>(rows, ignored_rows);
    }
  }
}

TEST(MeanLoss, RefusesInvalidTypes) {
  const std::vector<float> losses(2);
  const std::vector<float> targets(2);
  float mean = 0;
  double inverse_count = 0;
  EXPECT_THROW(cpu::mean_loss(
                   {losses.data(), targets.data(), float32, &mean, &inverse_count, 2, -1, float32}),
               std::logic_error);
  EXPECT_THROW(cpu::mean_loss(
                   {losses.data(), targets.data(), int32, &mean, &inverse_count, 2, -1, bfloat16}),
               std::logic_error);
}

TEST(CrossEntropy, RefusesTargetsOutsideTheVocabulary) {
  const std::vector<float> logits(20);
  std::vector<float> loss(2), lse(2), dlogits(20);
  const float dloss = 1.0f;
  const double inverse_count = 0.5;
  for (const std::int64_t bad : {std::int64_t{10}, std::int64_t{-1}}) {
    const std::vector<std::int64_t> targets = {3, bad};
    try {
      cpu::cross_entropy_forward({logits.data(), targets.data(), int64, loss.data(), lse.data(), 2,
                                  10, 10, -100, float32});
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find(fmt::format("target {} of row 1", bad)),
                std::string::npos)
          << error.what();
    }
    EXPECT_THROW(
        cpu::cross_entropy_backward({logits.data(), targets.data(), int64, lse.data(), &dloss,
                                     &inverse_count, dlogits.data(), 2, 10, 10, -100, float32}),
        Error);
  }
}

}  // namespace
}  // namespace tessera::kernels::testing

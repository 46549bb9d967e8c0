// LayerNorm and RMSNorm, forward and backward, compared with fp64.
#include "kernels/normalization.h"

#include <fmt/format.h>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"
#include "tests/support/reference.h"

namespace tessera::kernels::testing {
namespace {

struct NormShape {
  std::int64_t rows, dim;
};
const std::vector<NormShape> norm_shapes = {{1, 1},    {7, 31},   {33, 7},
                                            {3, 1000}, {131, 33}, {2, 1021}};

template <class T>
using Statistic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
class NormalizationTest : public ::testing::Test {
 protected:
  static constexpr float eps = 1e-5f;

  static void expect_forward(NormShape shape, bool rms, bool with_residual, bool with_affine) {
    const auto [rows, dim] = shape;
    auto x = normals<T>(rows * dim, 1, 2.0);
    const auto residual = normals<T>(rows * dim, 2);
    const auto gamma = normals<T>(dim, 3);
    const auto beta = normals<T>(dim, 4);
    const bool with_beta = with_affine && !rms;
    std::vector<T> sum(x.size()), out(x.size());
    std::vector<Statistic<T>> mean(static_cast<std::size_t>(rows)), rstd(mean.size());
    cpu::norm_forward({x.data(), with_residual ? residual.data() : nullptr,
                       with_affine ? gamma.data() : nullptr, with_beta ? beta.data() : nullptr,
                       with_residual ? sum.data() : nullptr, out.data(),
                       rms ? nullptr : mean.data(), rstd.data(), rows, dim, eps, rms, dtype_of<T>});
    if (with_residual) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = narrow<T>(widen(x[i]) + widen(residual[i]));
      expect_same_bits(sum, x, "the stored sum");
    }
    const auto norm = reference::normalize(doubles(x), rows, dim, static_cast<double>(eps), rms);
    std::vector<double> expected = norm.normalized;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t column = i % static_cast<std::size_t>(dim);
      if (with_affine) expected[i] *= widen(gamma[column]);
      if (with_beta) expected[i] += widen(beta[column]);
    }
    expect_close(out, expected, 40, 4.0);
    expect_close(rstd, norm.rstd, 20);
    if (!rms) expect_close(mean, norm.mean, 20, 1.0);
  }

  static void expect_backward(NormShape shape, bool rms, bool with_residual, bool with_gamma,
                              bool accumulate) {
    const std::int64_t rows = shape.rows, dim = shape.dim;
    const auto x = normals<T>(rows * dim, 5, 2.0);
    const auto dout = normals<T>(rows * dim, 6);
    const auto dresidual = normals<T>(rows * dim, 7);
    const auto gamma = normals<T>(dim, 8);
    const auto old = normals<T>(dim, 9);
    const auto norm = reference::normalize(doubles(x), rows, dim, static_cast<double>(eps), rms);
    std::vector<Statistic<T>> mean, rstd;
    for (const double value : norm.mean) mean.push_back(static_cast<Statistic<T>>(value));
    for (const double value : norm.rstd) rstd.push_back(static_cast<Statistic<T>>(value));
    auto [dx, dgamma, dbeta] = reference::normalize_backward(
        norm, doubles(dout), with_gamma ? doubles(gamma) : std::vector<double>(), rms);
    const auto add = [](std::vector<double>& sum, const std::vector<T>& terms) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += widen(terms[i]);
    };
    if (with_residual) add(dx, dresidual);
    if (accumulate) {
      add(dgamma, old);
      add(dbeta, old);
    }
    // dx overwrites dresidual, or else dout.
    auto dx_out = with_residual ? dresidual : dout;
    auto dgamma_out = old, dbeta_out = old;
    cpu::norm_backward(
        {with_residual ? dout.data() : dx_out.data(), with_residual ? dx_out.data() : nullptr,
         x.data(), with_gamma ? gamma.data() : nullptr, rms ? nullptr : mean.data(), rstd.data(),
         dx_out.data(), dgamma_out.data(), rms ? nullptr : dbeta_out.data(), accumulate, accumulate,
         rows, dim, rms, dtype_of<T>});
    const double largest_rstd = *std::max_element(norm.rstd.begin(), norm.rstd.end());
    expect_close(dx_out, dx, 60, 8.0 * largest_rstd);
    expect_close(dgamma_out, dgamma, 20, 20.0);
    if (!rms) expect_close(dbeta_out, dbeta, 20, 20.0);
  }
};
TYPED_TEST_SUITE(NormalizationTest, FloatingTypes);

TYPED_TEST(NormalizationTest, ForwardMatchesReference) {
  for_each_target([] {
    for (const NormShape shape : norm_shapes) {
      for (const bool rms : {false, true}) {
        for (const bool residual : {false, true}) {
          for (const bool affine : {false, true}) {
            SCOPED_TRACE(fmt::format("{}x{} rms {} residual {} affine {}", shape.rows, shape.dim,
                                     rms, residual, affine));
            NormalizationTest<TypeParam>::expect_forward(shape, rms, residual, affine);
          }
        }
      }
    }
  });
}

TYPED_TEST(NormalizationTest, BackwardMatchesReference) {
  for_each_target([] {
    for (const NormShape shape : norm_shapes) {
      for (const bool rms : {false, true}) {
        for (const bool residual : {false, true}) {
          for (const bool gamma : {false, true}) {
            SCOPED_TRACE(fmt::format("{}x{} rms {} residual {} gamma {}", shape.rows, shape.dim,
                                     rms, residual, gamma));
            NormalizationTest<TypeParam>::expect_backward(shape, rms, residual, gamma, residual);
          }
        }
      }
    }
  });
}

TYPED_TEST(NormalizationTest, ThreadsChangeNoBit) {
  using T = TypeParam;
  constexpr std::int64_t rows = 300, dim = 129;
  const auto x = normals<T>(rows * dim, 10);
  const auto dout = normals<T>(rows * dim, 11);
  const auto gamma = normals<T>(dim, 12);
  expect_thread_invariant([&] {
    std::vector<T> out(x.size());
    std::vector<Statistic<T>> mean(rows), rstd(rows);
    cpu::norm_forward({x.data(), nullptr, gamma.data(), gamma.data(), nullptr, out.data(),
                       mean.data(), rstd.data(), rows, dim, 1e-5f, false, dtype_of<T>});
    std::vector<T> dgamma(dim), dbeta(dim), dx(x.size());
    cpu::norm_backward({dout.data(), nullptr, x.data(), gamma.data(), mean.data(), rstd.data(),
                        dx.data(), dgamma.data(), dbeta.data(), false, false, rows, dim, false,
                        dtype_of<T>});
    for (const auto& part : {dx, dgamma, dbeta}) out.insert(out.end(), part.begin(), part.end());
    return out;
  });
}

// Rows are computed in groups whose size depends on the width.
TYPED_TEST(NormalizationTest, RowsBesideChangeNoBit) {
  using T = TypeParam;
  constexpr std::int64_t rows = 7;
  for_each_target([&] {
    for (const std::int64_t dim : {37, 384, 600, 1500}) {
      const auto x = normals<T>(rows * dim, 14);
      const auto dout = normals<T>(rows * dim, 15);
      const auto gamma = normals<T>(dim, 16);
      std::vector<T> together(x.size()), alone(x.size()), dx(x.size()), dx_alone(x.size());
      std::vector<T> dgamma(gamma.size()), dbeta(gamma.size());
      std::vector<Statistic<T>> mean(rows), rstd(rows);
      const auto run = [&](std::int64_t first, std::int64_t count, std::vector<T>& out,
                           std::vector<T>& gradient) {
        const std::int64_t at = first * dim;
        cpu::norm_forward({x.data() + at, nullptr, gamma.data(), gamma.data(), nullptr,
                           out.data() + at, mean.data() + first, rstd.data() + first, count, dim,
                           1e-5f, false, dtype_of<T>});
        cpu::norm_backward({dout.data() + at, nullptr, x.data() + at, gamma.data(),
                            mean.data() + first, rstd.data() + first, gradient.data() + at,
                            dgamma.data(), dbeta.data(), false, false, count, dim, false,
                            dtype_of<T>});
      };
      run(0, rows, together, dx);
      for (std::int64_t row = 0; row < rows; ++row) run(row, 1, alone, dx_alone);
      expect_same_bits(together, alone, "out");
      expect_same_bits(dx, dx_alone, "dx");
    }
  });
}

TEST(Normalization, NanStaysInItsRow) {
  auto x = normals<float>(3 * 40, 13);
  x[50] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> out(x.size()), mean(3), rstd(3);
  cpu::norm_forward({x.data(), nullptr, nullptr, nullptr, nullptr, out.data(), mean.data(),
                     rstd.data(), 3, 40, 1e-5f, false, float32});
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 40 == 1) << i;
}

TEST(Normalization, LargeMeanKeepsTheVariance) {
  std::vector<float> x(64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 4096.0f + (i % 2 == 0 ? 0.25f : -0.25f);
  std::vector<float> out(x.size()), mean(1), rstd(1);
  cpu::norm_forward({x.data(), nullptr, nullptr, nullptr, nullptr, out.data(), mean.data(),
                     rstd.data(), 1, 64, 0.0f, false, float32});
  EXPECT_EQ(rstd[0], 4.0f);
  EXPECT_EQ(out[0], 1.0f);
}

TEST(Normalization, Refusals) {
  std::vector<float> x(4), rstd(1);
  EXPECT_THROW(cpu::norm_forward({x.data(), nullptr, nullptr, x.data(), nullptr, x.data(), nullptr,
                                  rstd.data(), 1, 4, 0.0f, true, float32}),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels::testing

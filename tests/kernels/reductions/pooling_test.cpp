// Pooling of packed sequences and normalisation of rows, compared with plain loops in fp64.
#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"
#include "support/packed_sequences.h"

namespace tessera::kernels::testing {
namespace {

using tessera::testing::PackedSequences;

constexpr PoolingMode all_pooling[] = {PoolingMode::mean, PoolingMode::cls, PoolingMode::max,
                                       PoolingMode::mean_sqrt_length};

struct PoolReference {
  std::vector<double> out, dx;
};

PoolReference pool(const PackedSequences& s, const std::vector<double>& x,
                   const std::vector<double>& dout, std::int64_t dim, PoolingMode mode) {
  PoolReference r{std::vector<double>(dout.size()), std::vector<double>(x.size())};
  for (std::size_t n = 0; n < s.lengths.size(); ++n) {
    for (std::int64_t c = 0; c < dim; ++c) {
      const auto at = [&](std::int64_t t) {
        return static_cast<std::size_t>((s.starts[n] + t) * dim + c);
      };
      const auto place = n * static_cast<std::size_t>(dim) + static_cast<std::size_t>(c);
      double sum = 0;
      std::int64_t largest = 0;
      for (std::int64_t t = 0; t < s.lengths[n]; ++t) {
        sum += x[at(t)];
        if (x[at(t)] > x[at(largest)]) largest = t;
      }
      double factor = 1.0 / s.lengths[n];
      if (mode == PoolingMode::mean_sqrt_length) factor = std::sqrt(factor);
      if (mode == PoolingMode::max || mode == PoolingMode::cls) {
        const std::int64_t row = mode == PoolingMode::max ? largest : 0;
        r.out[place] = x[at(row)];
        r.dx[at(row)] = dout[place];
        continue;
      }
      r.out[place] = sum * factor;
      for (std::int64_t t = 0; t < s.lengths[n]; ++t) r.dx[at(t)] = dout[place] * factor;
    }
  }
  return r;
}

template <class T>
class PoolingKernel : public ::testing::Test {};
TYPED_TEST_SUITE(PoolingKernel, FloatingTypes);

TYPED_TEST(PoolingKernel, EveryMode) {
  using C = decltype(to_compute(TypeParam{}));
  const PackedSequences s({3, 1, 20}, 20);
  for (const std::int64_t dim : {1, 7, 100}) {
    for (const PoolingMode mode : all_pooling) {
      const auto x = normals<TypeParam>(s.rows * dim, 1);
      const auto dout = normals<C>(3 * dim, 2);
      std::vector<C> out(dout.size());
      std::vector<TypeParam> dx(x.size()), again;
      const PoolBackward gradient{
          dout.data(), x.data(), s.starts.data(),    s.lengths.data(), dx.data(), 3, s.rows, dim,
          dim,         mode,     dtype_of<TypeParam>};
      cpu::pool_forward({x.data(), s.starts.data(), s.lengths.data(), out.data(), 3, s.rows, dim,
                         dim, mode, dtype_of<TypeParam>});
      cpu::pool_backward(gradient);
      const PoolReference wanted = pool(s, doubles(x), doubles(dout), dim, mode);
      expect_close(out, wanted.out, 30, 4);
      expect_close(dx, wanted.dx, 4, 2);
      again = dx;
      PoolBackward more = gradient;
      more.accumulate = true;
      cpu::pool_backward(more);
      for (std::size_t i = 0; i < dx.size(); ++i) EXPECT_EQ(widen(dx[i]), 2 * widen(again[i]));
    }
  }
}

TYPED_TEST(PoolingKernel, ANaNIsTheMaximumAndGetsTheGradient) {
  using C = decltype(to_compute(TypeParam{}));
  const PackedSequences s({3}, 3);
  const auto x = array_of<TypeParam>({5, std::numeric_limits<double>::quiet_NaN(), 9});
  const std::vector<C> dout{2};
  std::vector<C> out(1);
  std::vector<TypeParam> dx(3);
  cpu::pool_forward({x.data(), s.starts.data(), s.lengths.data(), out.data(), 1, 3, 1, 1,
                     PoolingMode::max, dtype_of<TypeParam>});
  cpu::pool_backward({dout.data(), x.data(), s.starts.data(), s.lengths.data(), dx.data(), 1, 3, 1,
                      1, PoolingMode::max, dtype_of<TypeParam>});
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(doubles(dx), (std::vector<double>{0, 2, 0}));
}

TYPED_TEST(PoolingKernel, NormalizedRows) {
  using C = decltype(to_compute(TypeParam{}));
  for (const std::int64_t dim : {1, 5, 384}) {
    for (const double eps : {1e-12, 1000.0}) {
      const std::int64_t rows = 4;
      const auto x = normals<TypeParam>(rows * dim, 3), dout = normals<TypeParam>(rows * dim, 4);
      std::vector<TypeParam> out(x.size()), dx(x.size());
      std::vector<C> norms(4);
      std::vector<double> y(x.size()), gradient(x.size());
      for (std::int64_t r = 0; r < rows; ++r) {
        double square = 0, along = 0;
        for (std::int64_t c = 0; c < dim; ++c) {
          const auto at = static_cast<std::size_t>(r * dim + c);
          square += widen(x[at]) * widen(x[at]);
          along += widen(x[at]) * widen(dout[at]);
        }
        const double norm = std::max(std::sqrt(square), eps);
        if (norm == eps) along = 0;
        for (std::int64_t c = 0; c < dim; ++c) {
          const auto at = static_cast<std::size_t>(r * dim + c);
          y[at] = widen(x[at]) / norm;
          gradient[at] = (widen(dout[at]) - widen(x[at]) * along / (norm * norm)) / norm;
        }
      }
      cpu::normalize_rows(
          {x.data(), out.data(), norms.data(), rows, dim, eps, dtype_of<TypeParam>});
      cpu::normalize_rows_backward(
          {dout.data(), x.data(), norms.data(), dx.data(), rows, dim, eps, dtype_of<TypeParam>});
      expect_close(out, y, 20, 0.1);
      expect_close(dx, gradient, 30, dim == 1 ? 20 : 1);
    }
  }
}

}  // namespace
}  // namespace tessera::kernels::testing

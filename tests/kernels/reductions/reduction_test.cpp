// SumRows and SumAll compared with fp64.
#include "kernels/reduction.h"

#include <fmt/format.h>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels::testing {
namespace {

template <class T>
class ReductionTest : public ::testing::Test {};
TYPED_TEST_SUITE(ReductionTest, FloatingTypes);

TYPED_TEST(ReductionTest, SumRowsMatchesReference) {
  using T = TypeParam;
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {1, 1}, {7, 31}, {1000, 1}, {1021, 3}, {5000, 33}, {131, 200}, {3, 1000}, {66, 1021}, {0, 7}};
  for_each_target([&] {
    for (const auto& [rows, inner] : shapes) {
      SCOPED_TRACE(fmt::format("{}x{}", rows, inner));
      const auto x = normals<T>(rows * inner, 1);
      const auto old = normals<T>(inner, 2);
      std::vector<long double> sums(old.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        sums[i % static_cast<std::size_t>(inner)] += widen(x[i]);
      }
      const std::vector<double> plain(sums.begin(), sums.end());
      auto accumulated = doubles(old);
      for (std::size_t i = 0; i < old.size(); ++i) {
        accumulated[i] = static_cast<double>(sums[i] + accumulated[i]);
      }
      auto out = old;
      cpu::sum_rows({x.data(), out.data(), rows, inner, dtype_of<T>});
      expect_close(out, plain, 10, 100.0);
      out = old;
      cpu::sum_rows({x.data(), out.data(), rows, inner, dtype_of<T>, true});
      expect_close(out, accumulated, 10, 100.0);
    }
  });
}

TYPED_TEST(ReductionTest, SumAllMatchesReference) {
  using T = TypeParam;
  for_each_target([&] {
    for (const std::int64_t n : {1, 7, 31, 33, 1000, 1021, 20'001}) {
      const auto x = normals<T>(n, 3);
      long double sum = 0.0L;
      for (const T value : x) sum += widen(value);
      std::vector<T> out(1);
      cpu::sum_all({x.data(), out.data(), n, dtype_of<T>, 0.5});
      expect_close(out, {static_cast<double>(0.5L * sum)}, 10, 100.0);
    }
  });
}

TYPED_TEST(ReductionTest, ThreadsChangeNoBit) {
  using T = TypeParam;
  const auto x = normals<T>(200'000, 4);
  expect_thread_invariant([&] {
    std::vector<T> out(401);
    cpu::sum_rows({x.data(), out.data(), 500, 400, dtype_of<T>});
    cpu::sum_all({x.data(), out.data() + 400, 200'000, dtype_of<T>});
    return out;
  });
  expect_thread_invariant([&] {
    std::vector<T> out(4);
    cpu::sum_rows({x.data(), out.data(), 50'000, 4, dtype_of<T>});
    return out;
  });
}

TEST(Reduction, NanAndInfPass) {
  std::vector<float> x(100, 1.0f), out(10);
  x[37] = std::numeric_limits<float>::quiet_NaN();
  x[44] = std::numeric_limits<float>::infinity();
  cpu::sum_rows({x.data(), out.data(), 10, 10, float32});
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(std::isnan(out[i]), i == 7);
    EXPECT_EQ(std::isinf(out[i]), i == 4);
  }
  cpu::sum_all({x.data(), out.data(), 100, float32});
  EXPECT_TRUE(std::isnan(out[0]));
}

}  // namespace
}  // namespace tessera::kernels::testing

// Reductions and running sums over the middle dimension, for every instruction set, dtype and odd
// size; threads.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

template <class T>
class ReduceKernel : public ::testing::Test {};
TYPED_TEST_SUITE(ReduceKernel, testing::FloatingTypes);

struct MiddleShape {
  std::int64_t outer, reduced, inner;
  [[nodiscard]] std::int64_t at(std::int64_t o, std::int64_t r, std::int64_t i) const {
    return (o * reduced + r) * inner + i;
  }
};

constexpr MiddleShape middle_shapes[] = {{3, 1, 1},  {2, 9001, 1},  {5, 33, 1},
                                         {3, 70, 7}, {1, 131, 300}, {2, 1, 5}};

TYPED_TEST(ReduceKernel, SumsAndExtremesOfEveryShape) {
  using T = TypeParam;
  testing::for_each_target([] {
    for (const MiddleShape& s : middle_shapes) {
      const std::vector<T> x = testing::normals<T>(s.outer * s.reduced * s.inner, 1);
      const std::int64_t results = s.outer * s.inner;
      std::vector<double> sums, largest;
      std::vector<std::int64_t> places;
      double magnitude = 0;
      for (std::int64_t o = 0; o < s.outer; ++o) {
        for (std::int64_t i = 0; i < s.inner; ++i) {
          double sum = 0, absolute = 0;
          std::int64_t best = 0;
          for (std::int64_t r = 0; r < s.reduced; ++r) {
            const double value = testing::widen(x[static_cast<std::size_t>(s.at(o, r, i))]);
            sum += value;
            absolute += std::abs(value);
            if (value > testing::widen(x[static_cast<std::size_t>(s.at(o, best, i))])) best = r;
          }
          sums.push_back(sum);
          magnitude = std::max(magnitude, absolute);
          places.push_back(best);
          largest.push_back(testing::widen(x[static_cast<std::size_t>(s.at(o, best, i))]));
        }
      }
      std::vector<T> out(static_cast<std::size_t>(results));
      cpu::reduce({ReduceOp::sum, x.data(), out.data(), s.outer, s.reduced, s.inner, dtype_of<T>});
      testing::expect_close(out, sums, 8, magnitude);
      cpu::reduce(
          {ReduceOp::maximum, x.data(), out.data(), s.outer, s.reduced, s.inner, dtype_of<T>});
      EXPECT_EQ(testing::doubles(out), largest);
      std::vector<std::int64_t> found(static_cast<std::size_t>(results));
      cpu::reduce(
          {ReduceOp::argmax, x.data(), found.data(), s.outer, s.reduced, s.inner, dtype_of<T>});
      EXPECT_EQ(found, places);
    }
  });
}

TYPED_TEST(ReduceKernel, NanIsTheLargestAndTheSmallest) {
  using T = TypeParam;
  for (const std::int64_t inner : {1, 3}) {
    std::vector<double> values(static_cast<std::size_t>(40 * inner), 1.0);
    values[static_cast<std::size_t>(21 * inner)] = std::nan("");
    values[static_cast<std::size_t>(30 * inner)] = std::nan("");
    values[static_cast<std::size_t>(5 * inner)] = -2;
    const std::vector<T> x = testing::array_of<T>(values);
    for (const ReduceOp op : {ReduceOp::argmax, ReduceOp::argmin}) {
      std::vector<std::int64_t> place(static_cast<std::size_t>(inner));
      cpu::reduce({op, x.data(), place.data(), 1, 40, inner, dtype_of<T>});
      EXPECT_EQ(place[0], 21);
    }
    std::vector<T> least(static_cast<std::size_t>(inner));
    cpu::reduce({ReduceOp::minimum, x.data(), least.data(), 1, 40, inner, dtype_of<T>});
    EXPECT_TRUE(std::isnan(testing::widen(least[0])));
  }
}

TYPED_TEST(ReduceKernel, RunningSumsInBothDirections) {
  using T = TypeParam;
  for (const MiddleShape& s : middle_shapes) {
    const std::vector<T> x = testing::normals<T>(s.outer * s.reduced * s.inner, 2);
    for (const bool reverse : {false, true}) {
      std::vector<double> wanted(x.size());
      for (std::int64_t o = 0; o < s.outer; ++o) {
        for (std::int64_t i = 0; i < s.inner; ++i) {
          double sum = 0;
          for (std::int64_t step = 0; step < s.reduced; ++step) {
            const auto at =
                static_cast<std::size_t>(s.at(o, reverse ? s.reduced - 1 - step : step, i));
            sum += testing::widen(x[at]);
            wanted[at] = sum;
          }
        }
      }
      std::vector<T> out(x.size());
      cpu::cumulative_sum(
          {x.data(), out.data(), s.outer, s.reduced, s.inner, dtype_of<T>, reverse});
      testing::expect_close(out, wanted, 0, 1);
    }
  }
}

TYPED_TEST(ReduceKernel, AnyNumberOfThreadsGivesTheSameBits) {
  using T = TypeParam;
  const std::vector<T> x = testing::normals<T>(6 * 500 * 300, 3);
  for (const MiddleShape& s : {MiddleShape{1800, 500, 1}, MiddleShape{6, 500, 300}}) {
    testing::expect_thread_invariant([&] {
      std::vector<T> out(static_cast<std::size_t>(s.outer * s.inner));
      cpu::reduce({ReduceOp::sum, x.data(), out.data(), s.outer, s.reduced, s.inner, dtype_of<T>});
      return out;
    });
  }
}

TEST(ReduceKernels, RefuseTheLargestOfNothing) {
  float x = 0;
  EXPECT_THROW(cpu::reduce({ReduceOp::maximum, &x, &x, 1, 0, 1, float32}), std::logic_error);
  cpu::reduce({ReduceOp::sum, &x, &x, 1, 0, 1, float32});
  EXPECT_EQ(x, 0);
}

}  // namespace
}  // namespace tessera::kernels

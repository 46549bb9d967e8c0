// SumOfSquares compared with exact references, and its independence of how the data are cut.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

template <class T>
T convert(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

template <class T>
std::vector<T> random_values(std::int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, 0.02);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) value = convert<T>(normal(generator));
  return values;
}

template <class T>
ExactSum squares(const T* x, std::int64_t n, float scale) {
  ExactSum sum;
  cpu::sum_of_squares({.x = x, .n = n, .dtype = dtype_of<T>, .scale = scale, .sum = &sum});
  return sum;
}

// The contract, implemented literally: columns of eight, added in halves.
template <class T>
double reference(const std::vector<T>& x, float scale) {
  ExactSum sum;
  for (std::size_t first = 0; first < x.size(); first += 32) {
    double square[32] = {};
    for (std::size_t i = 0; i < 32 && first + i < x.size(); ++i) {
      double value = 0;
      if constexpr (std::is_same_v<T, double>) {
        value = x[first + i] * static_cast<double>(scale);
      } else {
        value = to_float(x[first + i]) * scale;
      }
      square[i] = value * value;
    }
    for (int c = 0; c < 8; ++c) {
      square[c] = (square[c] + square[c + 8]) + (square[c + 16] + square[c + 24]);
    }
    for (const int half : {4, 2, 1}) {
      for (int c = 0; c < half; ++c) square[c] += square[c + half];
    }
    sum.add(square[0]);
  }
  return sum.value();
}

template <class T>
void check() {
  for (const std::int64_t n : {0, 1, 7, 31, 32, 33, 64, 1000, 4096, 100003}) {
    for (const float scale : {1.0f, 0.125f, 1.0f / 3}) {
      const auto x = random_values<T>(n, static_cast<unsigned>(n));
      const double got = squares(x.data(), n, scale).value();
      EXPECT_EQ(got, reference(x, scale)) << n << " elements, scale " << scale;
      __float128 exact = 0;
      for (const T value : x) {
        __float128 term = 0;
        if constexpr (std::is_same_v<T, double>) {
          term = value * static_cast<double>(scale);
        } else {
          term = to_float(value) * scale;
        }
        exact += term * term;
      }
      const auto want = static_cast<double>(exact);
      EXPECT_NEAR(got, want, 1e-15 * want);
    }
  }
}

TEST(SumOfSquares, Float32) {
  check<float>();
}
TEST(SumOfSquares, BFloat16) {
  check<BFloat16>();
}
TEST(SumOfSquares, Float16) {
  check<Float16>();
}
TEST(SumOfSquares, Float64) {
  check<double>();
}

TEST(SumOfSquares, ShardingAndThreadsChangeNoBit) {
  constexpr std::int64_t n = 300007;
  const auto x = random_values<float>(n, 20);
  const int threads = compute_threads();
  set_compute_threads(1);
  const ExactSum whole = squares(x.data(), n, 0.3f);
  for (const int workers : {1, 2, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t world : {1, 2, 3, 5, 7, 8}) {
      const std::int64_t shard = ((n + world - 1) / world + 31) / 32 * 32;
      ExactSum sum;
      for (std::int64_t rank = world - 1; rank >= 0; --rank) {
        const std::int64_t first = std::min(n, rank * shard);
        sum.add(squares(x.data() + first, std::min(n, first + shard) - first, 0.3f));
      }
      sum.normalize();
      EXPECT_EQ(sum.limb, whole.limb) << world << " shards, " << workers << " threads";
    }
  }
  set_compute_threads(threads);
}

TEST(SumOfSquares, NonFiniteInputIsReported) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto x = random_values<float>(1000, 21);
    x[777] = bad;
    const ExactSum sum = squares(x.data(), 1000, 1.0f);
    EXPECT_TRUE(sum.non_finite);
    EXPECT_TRUE(std::isnan(sum.value()));
  }
}

TEST(SumOfSquares, BlocksOfVeryDifferentSizes) {
  std::mt19937 generator(22);
  for (const int range : {10, 20, 40, 300, 480}) {
    std::uniform_int_distribution<int> exponent(-range, range);
    std::vector<double> x(32 * 3000);
    for (std::size_t block = 0; block < x.size(); block += 32) {
      const int scale = exponent(generator);
      const bool zero = generator() % 10 == 0;
      for (std::size_t i = block; i < block + 32; ++i) {
        x[i] = zero ? 0.0 : std::ldexp(1.0 + static_cast<double>(generator()) * 0x1p-32, scale);
      }
    }
    const auto n = static_cast<std::int64_t>(x.size());
    EXPECT_EQ(squares(x.data(), n, 1.0f).value(), reference(x, 1.0f)) << range;
    std::fill(x.begin(), x.begin() + 32, 0.0);
    EXPECT_EQ(squares(x.data(), n, 1.0f).value(), reference(x, 1.0f)) << range;
    x[0] = -std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(squares(x.data(), n, 1.0f).non_finite);
    x[0] = std::numeric_limits<double>::max();
    EXPECT_TRUE(squares(x.data(), n, 1.0f).non_finite);
  }
}

TEST(SumOfSquares, TinyAndHugeNumbersCount) {
  const std::vector<float> x(64, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(squares(x.data(), 64, 1.0f).value(), 64 * 0x1p-298);
  const std::vector<float> y(64, 0x1p127f);
  EXPECT_EQ(squares(y.data(), 64, 1.0f).value(), 0x1p260);
}

}  // namespace
}  // namespace tessera::kernels

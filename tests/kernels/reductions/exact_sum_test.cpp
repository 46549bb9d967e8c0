// ExactSum compared with references that are exact by construction, and its independence of order
// and grouping.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/reduction.h"

namespace tessera::kernels {
namespace {

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

std::vector<double> wide_range(std::size_t n, unsigned seed, int low, int high) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> mantissa(1.0, 2.0);
  std::uniform_int_distribution<int> exponent(low, high);
  std::vector<double> values(n);
  for (double& value : values) value = std::ldexp(mantissa(generator), exponent(generator));
  return values;
}

TEST(ExactSum, ReturnsASingleDouble) {
  const double largest = std::numeric_limits<double>::max();
  const double least = std::numeric_limits<double>::denorm_min();
  const double normal = std::numeric_limits<double>::min();
  for (const double value : {0.0, -0.0, 1.0, 0.1, least, 3 * least, normal, normal - least, largest,
                             std::nextafter(1.0, 2.0), 0x1.fffffffffffffp0}) {
    EXPECT_EQ(sum_of({value}), value);
  }
  for (const double value : wide_range(20000, 1, -1074, 1023)) EXPECT_EQ(sum_of({value}), value);
}

TEST(ExactSum, AgreesWithIntegerArithmetic) {
  std::mt19937_64 generator(2);
  for (int round = 0; round < 200; ++round) {
    unsigned __int128 integers = 0;
    ExactSum sum;
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t mantissa = generator() >> (11 + generator() % 40);
      const int shift = static_cast<int>(generator() % 60);
      integers += static_cast<unsigned __int128>(mantissa) << shift;
      sum.add(std::ldexp(static_cast<double>(mantissa), shift - 40));
    }
    // The conversion of a 128-bit integer to double rounds once, to nearest even.
    EXPECT_EQ(sum.value(), std::ldexp(static_cast<double>(integers), -40));
  }
}

TEST(ExactSum, RoundsHalfToEvenWithASticky) {
  EXPECT_EQ(sum_of({1.0, 0x1p-53}), 1.0);
  EXPECT_EQ(sum_of({1.0, 0x1p-53, 0x1p-1074}), 1.0 + 0x1p-52);
  EXPECT_EQ(sum_of({1.0 + 0x1p-52, 0x1p-53}), 1.0 + 0x1p-51);
  EXPECT_EQ(sum_of({0x1p1023, 0x1p-1074}), 0x1p1023);
  EXPECT_EQ(sum_of({0x1.fffffffffffffp0, 0x1p-53}), 2.0);
}

TEST(ExactSum, SubnormalsAreExact) {
  std::mt19937_64 generator(3);
  std::uint64_t integers = 0;
  ExactSum sum;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t mantissa = generator() >> 21;
    integers += mantissa;
    sum.add(std::ldexp(static_cast<double>(mantissa), -1074));
  }
  EXPECT_EQ(sum.value(), std::ldexp(static_cast<double>(integers), -1074));
}

TEST(ExactSum, OverflowsLikeADouble) {
  const double largest = std::numeric_limits<double>::max();
  EXPECT_EQ(sum_of({largest, largest}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum_of({largest, 0x1p969}), largest);
  EXPECT_EQ(sum_of({largest, 0x1p970}), std::numeric_limits<double>::infinity());
}

TEST(ExactSum, OrderAndPartitionDoNotChangeTheLimbs) {
  std::vector<double> values = wide_range(4000, 4, -1060, 1000);
  ExactSum whole;
  for (const double value : values) whole.add(value);
  whole.normalize();
  std::mt19937_64 generator(5);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(values.begin(), values.end(), generator);
    std::vector<ExactSum> parts(1 + generator() % 9);
    for (std::size_t i = 0; i < values.size(); ++i)
      parts[generator() % parts.size()].add(values[i]);
    ExactSum sum;
    for (const ExactSum& part : parts) sum.add(part);
    EXPECT_EQ(sum.value(), whole.value());
    sum.normalize();
    EXPECT_EQ(sum.limb, whole.limb);
  }
}

TEST(ExactSum, LimbsNeverOverflow) {
  // Limbs at the limit of what an addition may leave.
  ExactSum sum;
  const double value = 0x1.fffffffffffffp0;
  sum.add(value);
  int doublings = 0;
  for (; doublings < 100; ++doublings) sum.add(ExactSum(sum));
  EXPECT_EQ(sum.value(), std::ldexp(value, doublings));
  for (const std::int64_t limb : sum.limb) EXPECT_GE(limb, 0);
}

TEST(ExactSum, NonFiniteStaysVisible) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(),
        -std::numeric_limits<double>::infinity()}) {
    ExactSum sum;
    sum.add(1.0);
    sum.add(bad);
    EXPECT_TRUE(sum.non_finite);
    EXPECT_TRUE(std::isnan(sum.value()));
    ExactSum other;
    other.add(sum);
    EXPECT_TRUE(std::isnan(other.value()));
  }
  ExactSum sum;
  EXPECT_THROW(sum.add(-1.0), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

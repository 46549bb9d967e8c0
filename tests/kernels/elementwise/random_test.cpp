// Philox compared with its published vectors; the draws' independence of cuts, their moments and
// their range.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

// The known answers in Random123 for philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({.seed = 0, .stream = 0}, 0),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(philox({.seed = ones, .stream = ones}, ones),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0 (digits of pi).
  EXPECT_EQ(philox({.seed = 0x299f31d0a4093822, .stream = 0x0370734413198a2e}, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

template <class T>
std::vector<T> fill(std::int64_t first, std::int64_t n, RandomKey key, Distribution distribution,
                    double a, double b) {
  std::vector<T> out(static_cast<std::size_t>(n));
  cpu::random_fill({.out = out.data(),
                    .n = n,
                    .first = first,
                    .dtype = dtype_of<T>,
                    .key = key,
                    .distribution = distribution,
                    .a = a,
                    .b = b});
  return out;
}

constexpr RandomKey kKey{.seed = 0x123456789abcdef, .stream = 0xfedcba9876543210};

TEST(RandomFill, UniformIsTheWordOfTheElement) {
  const std::int64_t first =
      (std::int64_t{1} << 34) - 1001;  // the counter's upper half changes too
  const auto draws = fill<double>(first, 5000, kKey, Distribution::uniform, 0.0, 1.0);
  for (std::int64_t i = 0; i < 5000; ++i) {
    const auto element = static_cast<std::uint64_t>(first + i);
    const std::uint32_t word = philox(kKey, element / 4)[element % 4];
    ASSERT_EQ(draws[i], (word >> 8) * 0x1p-24) << i;
  }
}

TEST(RandomFill, NormalIsBoxMullerOfTheWords) {
  const auto draws = fill<double>(0, 40000, kKey, Distribution::normal, 0.0, 1.0);
  const double pi = std::acos(-1.0);
  for (std::int64_t i = 0; i < 40000; i += 2) {
    const auto words = philox(kKey, static_cast<std::uint64_t>(i) / 4);
    const double unit = (static_cast<double>(words[i % 4]) + 1) * 0x1p-32;
    const double angle = 2 * pi * (words[i % 4 + 1] * 0x1p-32);
    const double radius = std::sqrt(-2 * std::log(unit));
    ASSERT_NEAR(draws[i], radius * std::cos(angle), 1e-13) << i;
    ASSERT_NEAR(draws[i + 1], radius * std::sin(angle), 1e-13) << i;
  }
}

template <class T>
void check_cuts(Distribution distribution) {
  constexpr std::int64_t n = 20011;
  const auto whole = fill<T>(0, n, kKey, distribution, -0.5, 1.5);
  const int threads = compute_threads();
  for (const int workers : {1, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t cut : {1, 2, 3, 5, 511, 513, 10000, 20010}) {
      const auto lower = fill<T>(0, cut, kKey, distribution, -0.5, 1.5);
      const auto upper = fill<T>(cut, n - cut, kKey, distribution, -0.5, 1.5);
      EXPECT_EQ(std::memcmp(lower.data(), whole.data(), lower.size() * sizeof(T)), 0) << cut;
      EXPECT_EQ(std::memcmp(upper.data(), whole.data() + cut, upper.size() * sizeof(T)), 0) << cut;
    }
  }
  set_compute_threads(threads);
}

TEST(RandomFill, CutsAndThreadsChangeNoBit) {
  for (const Distribution distribution : {Distribution::uniform, Distribution::normal}) {
    check_cuts<float>(distribution);
    check_cuts<BFloat16>(distribution);
    check_cuts<Float16>(distribution);
    check_cuts<double>(distribution);
  }
}

TEST(RandomFill, LowPrecisionIsTheRoundedFloat) {
  const auto wide = fill<float>(0, 3000, kKey, Distribution::normal, 1.0, 0.02);
  const auto bfloat = fill<BFloat16>(0, 3000, kKey, Distribution::normal, 1.0, 0.02);
  const auto half = fill<Float16>(0, 3000, kKey, Distribution::normal, 1.0, 0.02);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(bfloat[i].bits, to_bfloat16(wide[i]).bits);
    ASSERT_EQ(half[i].bits, to_float16(wide[i]).bits);
  }
}

TEST(RandomFill, NormalMoments) {
  constexpr std::int64_t n = 400000;
  const auto draws = fill<float>(7, n, kKey, Distribution::normal, 3.0, 2.0);
  double mean = 0, square = 0, cube = 0, fourth = 0, neighbours = 0, previous = 0;
  for (const float draw : draws) {
    const double z = (draw - 3.0) / 2.0;
    mean += z;
    square += z * z;
    cube += z * z * z;
    fourth += z * z * z * z;
    neighbours += z * previous;
    previous = z;
  }
  // Five standard errors for each.
  const double error = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(mean / n, 0.0, error);
  EXPECT_NEAR(square / n, 1.0, error * std::sqrt(2.0));
  EXPECT_NEAR(cube / n, 0.0, error * std::sqrt(15.0));
  EXPECT_NEAR(fourth / n, 3.0, error * std::sqrt(96.0));
  EXPECT_NEAR(neighbours / n, 0.0, error);
}

TEST(RandomFill, UniformRangeAndStreams) {
  constexpr std::int64_t n = 200000;
  const auto draws = fill<float>(0, n, kKey, Distribution::uniform, -2.0, 6.0);
  double mean = 0;
  for (const float draw : draws) {
    ASSERT_GE(draw, -2.0f);
    ASSERT_LT(draw, 6.0f);
    mean += draw;
  }
  EXPECT_NEAR(mean / n, 2.0, 5 * 8 / std::sqrt(12.0 * n));
  const auto same = [&](RandomKey key) {
    const auto other = fill<float>(0, 1000, key, Distribution::uniform, -2.0, 6.0);
    int equal = 0;
    for (std::size_t i = 0; i < other.size(); ++i) equal += other[i] == draws[i] ? 1 : 0;
    return equal;
  };
  EXPECT_EQ(same(kKey), 1000);
  EXPECT_LE(same({.seed = kKey.seed + 1, .stream = kKey.stream}), 3);
  EXPECT_LE(same({.seed = kKey.seed, .stream = kKey.stream + 1}), 3);
}

}  // namespace
}  // namespace tessera::kernels

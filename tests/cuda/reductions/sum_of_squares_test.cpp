// The exact sum of squares on the GPU gives the CPU's bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::ExactSum;

class DeviceSum {
 public:
  explicit DeviceSum(const ExactSum& start = {}) : memory_(bytes_of(start)) {}
  [[nodiscard]] ExactSum* get() const { return memory_.as<ExactSum>(); }
  [[nodiscard]] ExactSum read() const {
    const std::vector<std::byte> bytes = memory_.read();
    ExactSum sum;
    std::memcpy(static_cast<void*>(&sum), bytes.data(), sizeof(sum));
    return sum;
  }

 private:
  static std::vector<std::byte> bytes_of(const ExactSum& sum) {
    std::vector<std::byte> bytes(sizeof(sum));
    std::memcpy(bytes.data(), static_cast<const void*>(&sum), sizeof(sum));
    return bytes;
  }
  DeviceMemory memory_;
};

void expect_same_sum(const std::vector<double>& values, DType dtype, std::size_t offset,
                     float scale, const ExactSum& start = {}) {
  MirroredArray x(values, dtype, offset);
  const auto n = static_cast<std::int64_t>(values.size());
  ExactSum expected = start;
  kernels::cpu::sum_of_squares({x.host(), n, dtype, scale, &expected});
  const DeviceSum sum(start);
  TestContext context;
  kernels::cuda::sum_of_squares({x.device(), n, dtype, scale, sum.get()}, context.queue());
  context.synchronize();
  const ExactSum result = sum.read();
  if (!expected.non_finite) {
    expect_equal("sum_of_squares", "sum", dtype, {result.value()}, {expected.value()});
  }
  EXPECT_TRUE(result.limb == expected.limb)
      << name_of(dtype) << " " << n << " elements: " << result.value() << ", not "
      << expected.value();
  EXPECT_EQ(result.non_finite, expected.non_finite);
}

TEST(CudaSumOfSquares, HasTheCpusBits) {
  for (const DType dtype : floating_dtypes) {
    for (const std::size_t n : {0u, 1u, 31u, 32u, 33u, 1000u, 9000u}) {
      expect_same_sum(random_values(n, dtype, 1), dtype, 0, 1.0f);
    }
    expect_same_sum(random_values(1000, dtype, 2), dtype, 1, 1.0f / 3.0f);
    expect_same_sum(random_values(1000, dtype, 3), dtype, 3, 1e-6f);
  }
}

// Numbers that do not fit together in one 128-bit integer: every power of two, subnormal squares,
// zeroes between them.
TEST(CudaSumOfSquares, OfAllMagnitudes) {
  std::vector<double> wide;
  for (int exponent = -530; exponent < 510; ++exponent) {
    wide.push_back(std::ldexp(1.0 + exponent * 1e-4, exponent));
    wide.resize(wide.size() + 31, exponent % 3 == 0 ? 0.0 : std::ldexp(1.0, exponent / 2));
  }
  expect_same_sum(wide, float64, 0, 1.0f);
  std::vector<double> narrow;
  for (int exponent = -140; exponent < 120; ++exponent) {
    narrow.resize(narrow.size() + 32, std::ldexp(1.3, exponent));
  }
  expect_same_sum(narrow, float32, 0, 1.0f);
  expect_same_sum(std::vector<double>(64, std::numeric_limits<double>::denorm_min()), float64, 0,
                  1.0f);
}

TEST(CudaSumOfSquares, AddsToTheOldSum) {
  ExactSum start;
  start.add(1e300);
  start.add(1e-300);
  start.add(12345.678);
  expect_same_sum(random_values(1000, float32, 4), float32, 0, 1.0f, start);
  expect_same_sum({}, float32, 0, 1.0f, start);
}

// Shards cut at multiples of 32 give the bits of the whole.
TEST(CudaSumOfSquares, OfShards) {
  constexpr std::size_t n = 1000, cut = 320;
  MirroredArray x(random_values(n, bfloat16, 5), bfloat16);
  const DeviceSum whole, parts;
  TestContext context;
  kernels::cuda::sum_of_squares({x.device(), n, bfloat16, 0.5f, whole.get()}, context.queue());
  kernels::cuda::sum_of_squares({x.device(), cut, bfloat16, 0.5f, parts.get()}, context.queue());
  kernels::cuda::sum_of_squares(
      {static_cast<char*>(x.device()) + cut * 2, n - cut, bfloat16, 0.5f, parts.get()},
      context.queue());
  context.synchronize();
  EXPECT_TRUE(whole.read().limb == parts.read().limb);
}

TEST(CudaSumOfSquares, NonFiniteNumbers) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    std::vector<double> values = random_values(100, float64, 6);
    values[70] = bad;
    expect_same_sum(values, float64, 0, 1.0f);
    expect_same_sum(values, float32, 0, 1.0f);
  }
}

TEST(CudaSumOfSquares, RefusesTypesThatItCannotAdd) {
  TestContext context;
  const DeviceMemory x(64);
  const DeviceSum sum;
  EXPECT_THROW(
      kernels::cuda::sum_of_squares({x.data(), 4, float32, 1.0f, nullptr}, context.queue()),
      std::logic_error);
  EXPECT_THROW(
      kernels::cuda::sum_of_squares({x.data(), 4, int32, 1.0f, sum.get()}, context.queue()),
      std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

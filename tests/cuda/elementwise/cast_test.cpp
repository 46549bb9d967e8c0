// Cast: the CPU's bits for every pair of dtypes; a NaN is any NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

constexpr DType integers[] = {int32, int64, uint8, boolean};
constexpr DType all_dtypes[] = {float32, bfloat16, float16, float64, int32, int64, uint8, boolean};

// Ties of the 16-bit formats, their neighbours beyond float's precision, subnormal and largest
// numbers, infinities and NaNs, between normal draws of several magnitudes.
std::vector<double> floating_values(std::size_t n, DType dtype, unsigned seed) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double special[] = {0.0,
                            -0.0,
                            1 + 0x1p-8,
                            1 + 0x3p-8,
                            -(1 + 0x1p-8 + 0x1p-40),
                            1 + 0x1p-11,
                            1 + 0x1p-11 - 0x1p-45,
                            0x1p-24,
                            0x1.8p-25,
                            0x1p-25,
                            0x1p-140,
                            0x1.fp-130,
                            65504,
                            65519.9,
                            65520,
                            3.4e38,
                            3.5e38,
                            1e300,
                            infinity,
                            -infinity,
                            std::numeric_limits<double>::quiet_NaN()};
  std::vector<double> values = random_values(n, float64, seed, 1);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = i % 3 == 0 ? special[i / 3 % std::size(special)]
                           : values[i] * std::ldexp(1.0, static_cast<int>(i % 40) - 20);
  }
  return decode(encode(values, dtype), dtype);
}

std::vector<double> integer_values(std::size_t n, DType dtype) {
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto number = static_cast<double>(i * 7919 % 65537);
    values[i] = dtype == boolean ? static_cast<double>(i % 2)
                : dtype == uint8 ? static_cast<double>(i * 37 % 256)
                : i % 5 == 0     ? -number * 32749
                                 : number;
  }
  return values;
}

std::vector<double> values_of(std::size_t n, DType dtype, unsigned seed) {
  return is_floating(dtype) ? floating_values(n, dtype, seed) : integer_values(n, dtype);
}

// The payload of a NaN does not matter.
std::vector<double> with_one_nan(std::vector<double> values) {
  for (double& value : values) {
    if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  }
  return values;
}

struct Case {
  DType in, out;
  float scale = 1;
  bool accumulate = false;
};

void check(const Case& c, std::size_t n, std::size_t in_offset, std::size_t out_offset) {
  MirroredArray in(values_of(n, c.in, 1), c.in, in_offset);
  std::vector<double> old =
      is_floating(c.out) ? random_values(n, c.out, 2) : values_of(n, c.out, 2);
  MirroredArray out(old, c.out, out_offset);
  const auto count = static_cast<std::int64_t>(n);
  TestContext context;
  kernels::cuda::cast({in.device(), out.device(), count, c.in, c.out, c.scale, c.accumulate},
                      context.queue());
  kernels::cpu::cast({in.host(), out.host(), count, c.in, c.out, c.scale, c.accumulate});
  expect_equal("cast", "from " + std::string(name_of(c.in)), c.out,
               with_one_nan(out.device_values()), with_one_nan(out.host_values()));
}

TEST(CudaCast, FloatingPairs) {
  for (const DType in : floating_dtypes) {
    for (const DType out : floating_dtypes) {
      for (const float scale : {1.0f, 0.37f}) {
        check({in, out, scale, false}, 1003, 0, 0);
        check({in, out, scale, true}, 1003, 0, 0);
      }
      check({in, out, 0.37f}, 301, 1, 1);  // equally far from a boundary
      check({in, out, 0.37f, true}, 301, 3, 2);
      check({in, out}, 0, 0, 0);
      check({in, out}, 5, 1, 0);
    }
  }
}

TEST(CudaCast, Integers) {
  for (const DType in : integers) {
    for (const DType out : all_dtypes) {
      for (const bool accumulate : {false, true}) {
        check({in, out, 1, accumulate}, 500, 0, 0);
        check({in, out, 1, accumulate}, 77, 1, 3);
      }
    }
  }
}

TEST(CudaCast, IntegersBeyondDouble) {
  const std::vector<std::int64_t> numbers = {9007199254740993,
                                             -9007199254740993,
                                             16777217,
                                             16777219,
                                             -2147483649,
                                             4611686018427387905,
                                             257,
                                             259,
                                             2049,
                                             2051,
                                             1099511627775};
  std::vector<std::byte> bytes(numbers.size() * sizeof(std::int64_t));
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  const auto n = static_cast<std::int64_t>(numbers.size());
  for (const DType dtype : all_dtypes) {
    MirroredArray in(bytes, int64);
    MirroredArray out(std::vector<double>(numbers.size(), 0), dtype);
    TestContext context;
    kernels::cuda::cast({in.device(), out.device(), n, int64, dtype}, context.queue());
    kernels::cpu::cast({in.host(), out.host(), n, int64, dtype});
    out.expect_same("cast", "large int64");
  }
}

TEST(CudaCast, InPlace) {
  for (const Case& c : {Case{float32, float32, 0.5f}, Case{bfloat16, float16, 0.5f},
                        Case{float32, float32, 2.0f, true}, Case{int32, float32}}) {
    MirroredArray both(values_of(203, c.in, 3), c.in, 1);
    TestContext context;
    kernels::cuda::cast({both.device(), both.device(), 203, c.in, c.out, c.scale, c.accumulate},
                        context.queue());
    kernels::cpu::cast({both.host(), both.host(), 203, c.in, c.out, c.scale, c.accumulate});
    expect_equal("cast", "in place", c.out, with_one_nan(decode(both.device_bytes(), c.out)),
                 with_one_nan(decode(both.host_bytes(), c.out)));
  }
}

TEST(CudaCast, ACopyKeepsEveryBit) {
  for (const DType dtype : all_dtypes) {
    MirroredArray in(values_of(501, dtype, 4), dtype, 1);
    MirroredArray out(std::vector<double>(501, 0), dtype, 2);
    TestContext context;
    kernels::cuda::cast({in.device(), out.device(), 501, dtype, dtype}, context.queue());
    kernels::cuda::cast({in.device(), in.device(), 501, dtype, dtype}, context.queue());
    context.synchronize();
    EXPECT_TRUE(out.device_bytes() == in.host_bytes()) << name_of(dtype);
    EXPECT_TRUE(in.device_bytes() == in.host_bytes()) << name_of(dtype);
  }
}

TEST(CudaCast, RefusesWhatTheCpuRefuses) {
  MirroredArray in(std::vector<double>(4, 1), float32);
  MirroredArray numbers(std::vector<double>(4, 1), int32);
  TestContext context;
  EXPECT_THROW(
      kernels::cuda::cast({in.device(), numbers.device(), 4, float32, int32}, context.queue()),
      std::logic_error);
  EXPECT_THROW(kernels::cuda::cast({numbers.device(), in.device(), 4, int32, float32, 2.0f},
                                   context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

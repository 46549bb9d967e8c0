// Wire formats of fewer bits: error bounds, independent blocks, and rounding twice equals rounding
// once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "base/low_precision.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

constexpr WireFormat block_formats[] = {WireFormat::int8, WireFormat::fp8_e4m3,
                                        WireFormat::fp8_e5m2};
constexpr WireFormat all_formats[] = {WireFormat::bf16, WireFormat::int8, WireFormat::fp8_e4m3,
                                      WireFormat::fp8_e5m2};

// Magnitudes from 2^-20 to 2^20, block by block, and a wide range inside some blocks.
template <class T>
std::vector<T> wire_values(std::int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<T> values;
  for (std::int64_t i = 0; i < n; ++i) {
    const int exponent = static_cast<int>((i / wire_block * 7) % 21) - 10;
    const int spread = (i / wire_block) % 3 == 0 ? static_cast<int>(i % 11) : 0;
    values.push_back(from_float<T>(std::ldexp(normal(generator), exponent - spread)));
  }
  return values;
}

template <class T>
std::vector<T> rounded(const std::vector<T>& values, WireFormat format) {
  std::vector<T> result = values;
  cpu::wire({WireStep::round, format, result.data(), result.data(), nullptr, nullptr,
             static_cast<std::int64_t>(result.size()), dtype_of<T>, dtype_of<T>});
  return result;
}

template <class T>
std::vector<T> sent(const std::vector<T>& values, WireFormat format) {
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<std::uint16_t> payload(values.size());  // aligned for bf16
  std::vector<std::uint8_t> scales(wire_scale_bytes(format, n) + 1, 0xa5);
  Wire wire{WireStep::encode, format, values.data(), nullptr,    payload.data(),
            scales.data(),    n,      dtype_of<T>,   dtype_of<T>};
  cpu::wire(wire);
  EXPECT_EQ(scales.back(), 0xa5);
  std::vector<T> result(values.size());
  wire.step = WireStep::decode;
  wire.in = nullptr;
  wire.out = result.data();
  cpu::wire(wire);
  return result;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

template <class T>
void expect_rounding_is_sending(std::int64_t n) {
  const std::vector<T> values = wire_values<T>(n, 1);
  for (const WireFormat format : all_formats) {
    const std::vector<T> once = rounded(values, format);
    EXPECT_TRUE(same_bytes(once, sent(values, format))) << name_of(format) << ' ' << n;
    EXPECT_TRUE(same_bytes(once, rounded(once, format))) << name_of(format) << ' ' << n;
    EXPECT_TRUE(same_bytes(once, sent(once, format))) << name_of(format) << ' ' << n;
  }
}

TEST(Wire, RoundingEqualsSendingAndIsIdempotent) {
  for (const std::int64_t n : {0, 1, 31, 32, 33, 1000, 40000}) {
    expect_rounding_is_sending<float>(n);
    expect_rounding_is_sending<BFloat16>(n);
    expect_rounding_is_sending<Float16>(n);
  }
}

// Integers are within 1/127 of the block's largest magnitude; fp8 within half a step of its own, or
// of the smallest step of the block.
TEST(Wire, TheErrorIsBounded) {
  const std::vector<float> values = wire_values<float>(32 * 512, 2);
  for (const WireFormat format : block_formats) {
    const std::vector<float> result = rounded(values, format);
    const double own = format == WireFormat::int8       ? 0
                       : format == WireFormat::fp8_e4m3 ? 0x1p-4
                                                        : 0x1p-3;
    const double least = format == WireFormat::int8       ? 1.0 / 127
                         : format == WireFormat::fp8_e4m3 ? 0x1p-17
                                                          : 0x1p-30;
    double worst = 0;
    for (std::size_t begin = 0; begin < values.size(); begin += 32) {
      double largest = 0;
      for (std::size_t i = begin; i < begin + 32; ++i)
        largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
      for (std::size_t i = begin; i < begin + 32; ++i) {
        const double error = std::fabs(static_cast<double>(result[i]) - values[i]);
        const double bound = std::max(own * std::fabs(values[i]), least * largest);
        ASSERT_LE(error, bound) << name_of(format) << " " << values[i] << " of " << largest;
        if (bound > 0) worst = std::max(worst, error / bound);
      }
    }
    EXPECT_GT(worst, 0.7) << name_of(format) << ": the bound is too loose";
  }
}

// By hand: the largest magnitude decides the scale; one that would round to 128 uses the next
// scale.
TEST(Wire, IntegersFollowTheFormat) {
  std::vector<float> values(32, 0.0f);
  values[0] = 100.0f;
  values[1] = 0.4f;
  values[2] = 0.5f;
  values[3] = 1.5f;
  values[4] = -2.5f;
  values[5] = 0.6f;
  std::vector<float> result = rounded(values, WireFormat::int8);
  EXPECT_EQ(std::vector<float>(result.begin(), result.begin() + 6),
            (std::vector<float>{100, 0, 0, 2, -2, 1}));
  values[0] = 127.49f;
  values[1] = 1.0f;
  EXPECT_EQ(rounded(values, WireFormat::int8)[0], 127.0f);
  EXPECT_EQ(rounded(values, WireFormat::int8)[1], 1.0f);
  values[0] = 127.5f;
  EXPECT_EQ(rounded(values, WireFormat::int8)[0], 128.0f);
  EXPECT_EQ(rounded(values, WireFormat::int8)[1], 0.0f);
}

// Every code of fp8 is decoded and encoded to itself.
TEST(Wire, EveryFp8NumberIsPreserved) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    if ((byte & 0x7f) != 0x7f) {
      EXPECT_EQ(encode_element<WireFormat::fp8_e4m3>(decode_element<WireFormat::fp8_e4m3>(byte)),
                byte);
    }
    if ((byte & 0x7f) < 0x7c) {
      EXPECT_EQ(encode_element<WireFormat::fp8_e5m2>(decode_element<WireFormat::fp8_e5m2>(byte)),
                byte);
    }
  }
  EXPECT_EQ(decode_element<WireFormat::fp8_e4m3>(0x7e), 448.0f);
  EXPECT_EQ(decode_element<WireFormat::fp8_e4m3>(0x01), 0x1p-9f);
  EXPECT_EQ(decode_element<WireFormat::fp8_e5m2>(0x7b), 57344.0f);
  EXPECT_EQ(decode_element<WireFormat::fp8_e5m2>(0x01), 0x1p-16f);
}

TEST(Wire, NonFiniteNumbersAffectOnlyTheirBlock) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(96, 1.0f);
    values[40] = bad;
    for (const WireFormat format : block_formats) {
      const std::vector<float> result = rounded(values, format);
      for (std::size_t i = 0; i < 96; ++i)
        EXPECT_EQ(std::isnan(result[i]), i >= 32 && i < 64) << name_of(format) << ' ' << i;
    }
  }
  for (const float edge : {0.0f, std::numeric_limits<float>::denorm_min(),
                           std::numeric_limits<float>::min(), 0x1.8p127f}) {
    for (const WireFormat format : block_formats) {
      EXPECT_NEAR(rounded(std::vector<float>(32, edge), format).front(), edge, 0x1p-126)
          << name_of(format);
    }
  }
  // Magnitudes beyond the type's largest number round to it.
  const std::vector<float> largest(32, std::numeric_limits<float>::max());
  EXPECT_EQ(rounded(largest, WireFormat::int8).front(), infinity);
}

// Cutting an array between blocks changes nothing.
TEST(Wire, BlocksAreIndependent) {
  const std::vector<float> values = wire_values<float>(320, 3);
  for (const WireFormat format : all_formats) {
    const std::vector<float> whole = rounded(values, format);
    for (const std::ptrdiff_t cut : {32, 160, 288}) {
      const std::vector<float> end =
          rounded(std::vector<float>(values.begin() + cut, values.end()), format);
      EXPECT_TRUE(same_bytes(end, std::vector<float>(whole.begin() + cut, whole.end())));
    }
  }
}

TEST(Wire, RefusesDtypesWithoutAWireFormat) {
  double wide[32] = {};
  EXPECT_THROW(cpu::wire({WireStep::round, WireFormat::int8, wide, wide, nullptr, nullptr, 32,
                          float64, float64}),
               std::logic_error);
  EXPECT_THROW(cpu::wire({WireStep::round, WireFormat::same, wide, wide, nullptr, nullptr, 32,
                          float32, float32}),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

// Products with a matrix of 8-bit integers: the rule of kernels/cpu/matmul/int8_linear.h computed
// by plain loops, to the bit, and its distance from the product in fp64.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/matmul/int8_linear.h"
#include "kernels/kernel_testing.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::normals;
using testing::widen;

struct Int8Case {
  std::int64_t rows, outputs, inputs;
  bool bias = true;
};

struct Int8Matrix {
  Int8Matrix(std::int64_t outputs, std::int64_t inputs)
      : row_bytes(cpu::int8_row_bytes(inputs)),
        bytes(static_cast<std::size_t>(outputs * row_bytes), std::byte{0x55}) {
    std::mt19937 generator(5);
    for (std::int64_t row = 0; row < outputs; ++row) {
      for (std::int64_t i = 0; i < inputs; ++i) {
        integers.push_back(static_cast<std::int8_t>(static_cast<int>(generator() % 256) - 128));
        bytes[static_cast<std::size_t>(row * row_bytes + i)] =
            static_cast<std::byte>(integers.back());
      }
      scales.push_back(0.001f * static_cast<float>(row + 1));
      cpu::finish_int8_row(bytes.data() + row * row_bytes, inputs, scales.back());
    }
  }
  std::int64_t row_bytes;
  std::vector<std::byte> bytes;
  std::vector<std::int8_t> integers;
  std::vector<float> scales;
};

template <class T>
std::vector<T> product_of(const Int8Case& s, const std::vector<T>& x, const Int8Matrix& w,
                          const std::vector<T>& bias) {
  std::vector<T> out(static_cast<std::size_t>(s.rows * s.outputs));
  cpu::int8_linear({.x = x.data(),
                    .w = w.bytes.data(),
                    .bias = s.bias ? bias.data() : nullptr,
                    .out = out.data(),
                    .rows = s.rows,
                    .inputs = s.inputs,
                    .outputs = s.outputs,
                    .dtype = dtype_of<T>});
  return out;
}

// The rule, one element at a time.
template <class T>
std::vector<T> by_the_rule(const Int8Case& s, const std::vector<T>& x, const Int8Matrix& w,
                           const std::vector<T>& bias) {
  std::vector<T> out;
  for (std::int64_t row = 0; row < s.rows; ++row) {
    const T* const values = x.data() + row * s.inputs;
    float largest = 0;
    for (std::int64_t i = 0; i < s.inputs; ++i) {
      largest = std::max(largest, std::abs(static_cast<float>(widen(values[i]))));
    }
    std::vector<int> q;
    for (std::int64_t i = 0; i < s.inputs; ++i) {
      const float scaled = static_cast<float>(widen(values[i])) * (127.0f / largest);
      q.push_back(largest == 0 ? 0 : static_cast<int>(std::nearbyint(scaled)));
    }
    for (std::int64_t j = 0; j < s.outputs; ++j) {
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < s.inputs; ++i) {
        sum +=
            q[static_cast<std::size_t>(i)] * w.integers[static_cast<std::size_t>(j * s.inputs + i)];
      }
      const float scale = largest / 127.0f * w.scales[static_cast<std::size_t>(j)];
      const float product = static_cast<float>(sum) * scale;
      const auto at = static_cast<std::size_t>(j);
      const float shifted = s.bias ? product + static_cast<float>(widen(bias[at])) : product;
      out.push_back(narrow<T>(shifted));
    }
  }
  return out;
}

template <class T>
class Int8LinearOf : public ::testing::Test {};
using Int8RowTypes = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(Int8LinearOf, Int8RowTypes);

TYPED_TEST(Int8LinearOf, FollowsTheRuleToTheBit) {
  for (const Int8Case& s : {Int8Case{1, 96, 64},
                            {1, 7, 33, false},
                            {4, 9, 31},
                            {5, 3, 1},
                            {7, 70, 200},
                            {67, 13, 100},
                            {1, 1030, 5},
                            {3, 1, 1000, false},
                            {0, 4, 8},
                            {2, 0, 8}}) {
    const auto x = normals<TypeParam>(s.rows * s.inputs, 1);
    const auto bias = normals<TypeParam>(s.outputs, 3);
    const Int8Matrix w(s.outputs, s.inputs);
    const std::vector<TypeParam> expected = by_the_rule(s, x, w, bias);
    testing::for_each_target(
        [&] { testing::expect_same_bits(expected, product_of(s, x, w, bias), "the rule"); });
  }
}

TYPED_TEST(Int8LinearOf, ThreadsDoNotChangeABit) {
  const Int8Case s{130, 700, 300};
  const auto x = normals<TypeParam>(s.rows * s.inputs, 1);
  const auto bias = normals<TypeParam>(s.outputs, 3);
  const Int8Matrix w(s.outputs, s.inputs);
  testing::expect_thread_invariant([&] { return product_of(s, x, w, bias); });
}

// Each element of x is rounded by at most half its scale.
TEST(Int8Linear, IsNearTheProductOfTheSameWeights) {
  const Int8Case s{9, 50, 512, false};
  const auto x = normals<float>(s.rows * s.inputs, 1);
  const Int8Matrix w(s.outputs, s.inputs);
  const std::vector<float> out = product_of(s, x, w, {});
  double error = 0, size = 0;
  for (std::int64_t row = 0; row < s.rows; ++row) {
    for (std::int64_t j = 0; j < s.outputs; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < s.inputs; ++i) {
        sum += double{x[static_cast<std::size_t>(row * s.inputs + i)]} *
               w.integers[static_cast<std::size_t>(j * s.inputs + i)] *
               double{w.scales[static_cast<std::size_t>(j)]};
      }
      error += std::pow(sum - out[static_cast<std::size_t>(row * s.outputs + j)], 2);
      size += sum * sum;
    }
  }
  EXPECT_LT(std::sqrt(error / size), 0.01);
  EXPECT_GT(error, 0);
}

TEST(Int8Linear, RowsWithoutNumbers) {
  const Int8Case s{4, 3, 40, false};
  std::vector<float> x(static_cast<std::size_t>(s.rows * s.inputs), 1.0f);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[40 + 39] = -std::numeric_limits<float>::infinity();
  std::fill(x.begin() + 80, x.begin() + 120, 0.0f);
  std::fill(x.begin() + 120, x.end(), 1e-44f);  // too small for an inverse
  testing::for_each_target([&] {
    const std::vector<float> out = product_of(s, x, Int8Matrix(3, 40), {});
    for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
    for (std::size_t i = 6; i < 12; ++i) EXPECT_EQ(out[i], 0) << i;
  });
}

// The largest sum that the limit of inputs allows.
TEST(Int8Linear, TheLargestSumsDoNotOverflow) {
  const std::int64_t inputs = cpu::most_int8_inputs;
  std::vector<std::byte> w(static_cast<std::size_t>(cpu::int8_row_bytes(inputs)),
                           static_cast<std::byte>(-128));
  cpu::finish_int8_row(w.data(), inputs, 1);
  const std::vector<float> x(static_cast<std::size_t>(inputs), -127.0f);
  float out = 0;
  testing::for_each_target([&] {
    cpu::int8_linear({x.data(), w.data(), nullptr, &out, 1, inputs, 1, DType::float32});
    EXPECT_EQ(out, 127.0f * 128.0f * static_cast<float>(inputs));
  });
}

TEST(Int8Linear, OtherTypesAndSizesAreRefused) {
  float x = 1;
  std::vector<std::byte> w(static_cast<std::size_t>(cpu::int8_row_bytes(1)));
  cpu::Int8Linear a{&x, w.data(), nullptr, &x, 1, 1, 1, DType::float64};
  EXPECT_THROW(cpu::int8_linear(a), std::logic_error);
  a.dtype = DType::float32;
  a.inputs = 0;
  EXPECT_THROW(cpu::int8_linear(a), std::logic_error);
  a.inputs = cpu::most_int8_inputs + 1;
  EXPECT_THROW(cpu::int8_linear(a), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

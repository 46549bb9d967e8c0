// Shared by the tests of vector kernels: arrays of any dtype from doubles, error bounds, and
// running a test for every instruction set of this processor.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "hwy/targets.h"

namespace tessera::kernels::testing {

inline const std::vector<std::int64_t> odd_sizes = {1, 7, 31, 33, 1000, 1021};

using FloatingTypes = ::testing::Types<float, BFloat16, Float16, double>;

template <class T>
double widen(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return to_float(value);
  }
}

// A value in the type in which kernels compute: fp64 for double, fp32 for all others.
template <class T>
auto to_compute(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return to_float(value);
  }
}

template <class T>
T narrow(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
std::vector<T> array_of(const std::vector<double>& values) {
  std::vector<T> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = narrow<T>(values[i]);
  return out;
}

template <class T>
std::vector<T> normals(std::int64_t n, unsigned seed, double deviation = 1.0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<T> out(static_cast<std::size_t>(n));
  for (T& value : out) value = narrow<T>(normal(generator));
  return out;
}

template <class T>
std::vector<double> doubles(const std::vector<T>& values) {
  std::vector<double> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = widen(values[i]);
  return out;
}

// Half a unit in the last place of T, relative; for fp16 also the smallest absolute step of a
// result.
template <class T>
constexpr double half_ulp() {
  if constexpr (std::is_same_v<T, double>) return 0x1p-53;
  if constexpr (std::is_same_v<T, float>) return 0x1p-24;
  if constexpr (std::is_same_v<T, BFloat16>) return 0x1p-8;
  return 0x1p-11;
}

inline double half_ulp(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return half_ulp<double>();
    case DType::float32:
      return half_ulp<float>();
    case DType::bfloat16:
      return half_ulp<BFloat16>();
    default:
      return half_ulp<Float16>();
  }
}

// One rounding to T, plus `ulps` roundings of the arithmetic (fp32, or fp64 for double) of values
// as large as the reference or `magnitude`. The bound allows a 16-bit result no second rounding.
template <class T>
void expect_close(const std::vector<T>& out, const std::vector<double>& reference, double ulps,
                  double magnitude = 0.0) {
  ASSERT_EQ(out.size(), reference.size());
  const double arithmetic = std::is_same_v<T, double> ? 0x1p-53 : 0x1p-24;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double value = widen(out[i]);
    if (std::isnan(reference[i])) {
      EXPECT_TRUE(std::isnan(value)) << "element " << i << " is " << value;
      continue;
    }
    if (std::isinf(reference[i])) {
      EXPECT_EQ(value, reference[i]) << "element " << i;
      continue;
    }
    const double size = std::max(std::abs(reference[i]), magnitude);
    double bound = half_ulp<T>() * std::abs(reference[i]) + ulps * arithmetic * size;
    if (std::is_same_v<T, Float16>) bound += 0x1p-25;
    ASSERT_LE(std::abs(value - reference[i]), bound)
        << "element " << i << ": " << value << " for " << reference[i];
  }
}

template <class T>
void expect_same_bits(const std::vector<T>& a, const std::vector<T>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  if (a.empty()) return;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0) << what;
}

// The largest error, for comparisons with a plain low-precision implementation.
inline double largest_error(const std::vector<double>& out, const std::vector<double>& reference) {
  double largest = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    largest = std::max(largest, std::abs(out[i] - reference[i]));
  }
  return largest;
}

// Runs body once for each instruction set that the kernels are compiled for and that this processor
// has.
template <class Body>
void for_each_target(Body&& body) {
  constexpr std::int64_t compiled = HWY_SSE4 | HWY_AVX2 | HWY_AVX3;
  hwy::SetSupportedTargetsForTest(0);
  const std::int64_t supported = hwy::SupportedTargets() & compiled;
  for (std::int64_t left = supported; left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Runs body with one and with two compute threads; its results must be the same in every bit.
template <class Body>
void expect_thread_invariant(Body&& body) {
  const int before = compute_threads();
  set_compute_threads(1);
  const auto one = body();
  set_compute_threads(2);
  const auto two = body();
  set_compute_threads(3);
  const auto three = body();
  set_compute_threads(before);
  expect_same_bits(one, two, "1 and 2 threads differ");
  expect_same_bits(one, three, "1 and 3 threads differ");
}

// Compares [0, n) in one call with pieces cut at every kind of place. `run(first, last, out)`
// computes elements [first, last) into out + first.
template <class T, class Run>
void expect_cut_invariant(std::int64_t n, Run&& run) {
  std::vector<T> whole(static_cast<std::size_t>(n));
  run(std::int64_t{0}, n, whole.data());
  std::mt19937 generator(7);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<T> pieces(static_cast<std::size_t>(n));
    std::int64_t first = 0;
    while (first < n) {
      const auto step = static_cast<std::int64_t>(generator() % 40 + 1);
      const std::int64_t last = std::min(n, first + step);
      run(first, last, pieces.data());
      first = last;
    }
    expect_same_bits(whole, pieces, "a cut changed an element");
  }
}

}  // namespace tessera::kernels::testing

// unfold and fold compared with loops over every element, for random windows and every dtype, and
// with the same bits for any number of threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/registry.h"
#include "tests/kernels/kernel_testing.h"

namespace tessera::kernels {
namespace {

// A random shape with at least one window.
WindowShape random_shape(std::mt19937& generator) {
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(generator() % static_cast<unsigned>(end));
  };
  WindowShape s{.planes = 1 + below(4),
                .size = {},
                .kernel = {},
                .stride = {},
                .padding = {},
                .dilation = {},
                .out = {}};
  for (const int i : {0, 1}) {
    s.kernel[i] = 1 + below(4);
    s.stride[i] = 1 + below(4);
    s.padding[i] = below(5);
    s.dilation[i] = 1 + below(3);
    const std::int64_t reach = s.dilation[i] * (s.kernel[i] - 1) + 1;
    s.size[i] = std::max<std::int64_t>(1, reach - 2 * s.padding[i]) + below(6);
    s.out[i] = (s.size[i] + 2 * s.padding[i] - reach) / s.stride[i] + 1;
  }
  return s;
}

// The place of an element of the columns in the planes, or -1.
std::int64_t place(const WindowShape& s, std::int64_t column) {
  const std::int64_t x = column % s.out[1], y = column / s.out[1] % s.out[0];
  const std::int64_t element = column / s.windows();
  const std::int64_t b = element % s.kernel[1], a = element / s.kernel[1] % s.kernel[0];
  const std::int64_t plane = element / s.kernel[1] / s.kernel[0];
  const std::int64_t row = y * s.stride[0] + a * s.dilation[0] - s.padding[0];
  const std::int64_t at = x * s.stride[1] + b * s.dilation[1] - s.padding[1];
  if (row < 0 || row >= s.size[0] || at < 0 || at >= s.size[1]) return -1;
  return (plane * s.size[0] + row) * s.size[1] + at;
}

template <class T>
double as_double(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value;
  else
    return to_float(value);
}

template <class T>
void check(DType dtype, const WindowShape& s, std::mt19937& generator) {
  // Whole numbers that the type has; in fp32 their sums are exact, and in 16 bits they are not.
  const std::uint32_t largest = dtype == bfloat16 ? 256 : 2048;
  const auto number = [&] {
    const auto whole =
        static_cast<float>(generator() % (2 * largest + 1)) - static_cast<float>(largest);
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(whole);
    else
      return from_float<T>(whole);
  };
  std::vector<T> x(static_cast<std::size_t>(s.elements())),
      columns(static_cast<std::size_t>(s.columns())), before = x;
  for (T& value : x) value = number();
  cpu::unfold({s, x.data(), columns.data(), dtype});
  for (std::int64_t i = 0; i < s.columns(); ++i) {
    const std::int64_t from = place(s, i);
    ASSERT_EQ(as_double(columns[static_cast<std::size_t>(i)]),
              from < 0 ? 0.0 : as_double(x[static_cast<std::size_t>(from)]))
        << i;
  }
  for (T& value : columns) value = number();
  for (T& value : before) value = number();
  for (const bool accumulate : {false, true}) {
    std::vector<double> wanted(x.size(), 0.0);
    for (std::size_t i = 0; accumulate && i < wanted.size(); ++i) wanted[i] = as_double(before[i]);
    for (std::int64_t i = 0; i < s.columns(); ++i) {
      const std::int64_t to = place(s, i);
      if (to >= 0) {
        wanted[static_cast<std::size_t>(to)] += as_double(columns[static_cast<std::size_t>(i)]);
      }
    }
    std::vector<T> out = before;
    cpu::fold({s, columns.data(), out.data(), dtype, accumulate});
    for (std::size_t i = 0; i < out.size(); ++i) {
      double rounded = wanted[i];  // once
      if constexpr (!std::is_floating_point_v<T>)
        rounded = as_double(from_float<T>(static_cast<float>(rounded)));
      ASSERT_EQ(as_double(out[i]), rounded) << i;
    }
  }
}

TEST(Windows, AreThoseOfLoops) {
  set_compute_threads(1);
  std::mt19937 generator(7);
  for (int round = 0; round < 60; ++round) {
    const WindowShape s = random_shape(generator);
    SCOPED_TRACE(
        fmt::format("planes {}, {}x{}, kernel {}x{}, stride {}x{}, padding {}x{}, "
                    "dilation {}x{}",
                    s.planes, s.size[0], s.size[1], s.kernel[0], s.kernel[1], s.stride[0],
                    s.stride[1], s.padding[0], s.padding[1], s.dilation[0], s.dilation[1]));
    check<float>(float32, s, generator);
    check<double>(float64, s, generator);
    check<BFloat16>(bfloat16, s, generator);
    check<Float16>(float16, s, generator);
  }
}

TEST(Windows, ThreadsDoNotChangeABit) {
  const WindowShape s{.planes = 8,
                      .size = {40, 50},
                      .kernel = {3, 3},
                      .stride = {1, 1},
                      .padding = {1, 1},
                      .dilation = {1, 1},
                      .out = {40, 50}};
  std::mt19937 generator(8);
  std::normal_distribution<float> normal;
  std::vector<float> columns(static_cast<std::size_t>(s.columns()));
  for (float& value : columns) value = normal(generator);
  std::vector<float> one(static_cast<std::size_t>(s.elements())), three = one;
  set_compute_threads(1);
  cpu::fold({s, columns.data(), one.data(), float32});
  set_compute_threads(3);
  cpu::fold({s, columns.data(), three.data(), float32});
  set_compute_threads(1);
  EXPECT_EQ(one, three);
}

}  // namespace
}  // namespace tessera::kernels

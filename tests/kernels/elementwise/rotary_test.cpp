// Rotary positions compared with the explicit rotation, in place, strided and inverse.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::to_compute;

struct Tables {
  std::vector<float> cosine, sine;
  Tables(std::int64_t positions, std::int64_t half) {
    for (std::int64_t p = 0; p < positions; ++p) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        cosine.push_back(static_cast<float>(std::cos(angle)));
        sine.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
};

constexpr std::int64_t kSequence = 5, kFirst = 3, kRows = 13;

template <class T>
void check_rotation(std::int64_t heads, std::int64_t head_dim, std::int64_t x_gap,
                    std::int64_t out_gap, bool inverse) {
  using C = decltype(to_compute(T{}));
  const std::int64_t half = head_dim / 2;
  const Tables tables(kFirst + kSequence, half);
  const std::int64_t x_stride = heads * head_dim + x_gap;
  const std::int64_t out_stride = heads * head_dim + out_gap;
  std::mt19937 generator(3);
  std::normal_distribution<double> normal;
  std::vector<T> x(static_cast<std::size_t>(kRows * x_stride));
  for (T& value : x) value = narrow<T>(normal(generator));
  std::vector<T> out(static_cast<std::size_t>(kRows * out_stride), narrow<T>(42));
  const std::vector<T> before = out;
  const Rotary call{.x = x.data(),
                    .out = out.data(),
                    .cosine = tables.cosine.data(),
                    .sine = tables.sine.data(),
                    .rows = kRows,
                    .sequence = kSequence,
                    .heads = heads,
                    .head_dim = head_dim,
                    .first_position = kFirst,
                    .x_stride = x_stride,
                    .out_stride = out_stride,
                    .inverse = inverse,
                    .dtype = dtype_of<T>};
  cpu::rotary(call);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::int64_t position = kFirst + row % kSequence;
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        const C c = tables.cosine[position * half + i];
        const C s = inverse ? -tables.sine[position * half + i] : tables.sine[position * half + i];
        const std::int64_t at = head * head_dim + i;
        const C lower = to_compute(x[row * x_stride + at]);
        const C upper = to_compute(x[row * x_stride + at + half]);
        const C want_lower = lower * c - upper * s;
        const C want_upper = upper * c + lower * s;
        ASSERT_EQ(to_compute(out[row * out_stride + at]), to_compute(narrow<T>(want_lower)));
        ASSERT_EQ(to_compute(out[row * out_stride + at + half]), to_compute(narrow<T>(want_upper)));
      }
    }
    for (std::int64_t i = heads * head_dim; i < out_stride; ++i) {
      ASSERT_EQ(std::memcmp(&out[row * out_stride + i], &before[row * out_stride + i], sizeof(T)),
                0)
          << "written between rows";
    }
  }
  Rotary in_place = call;
  in_place.out = x.data();
  in_place.out_stride = x_stride;
  cpu::rotary(in_place);
  for (std::int64_t row = 0; row < kRows; ++row) {
    ASSERT_EQ(std::memcmp(&x[row * x_stride], &out[row * out_stride],
                          static_cast<std::size_t>(heads * head_dim) * sizeof(T)),
              0);
  }
}

template <class T>
void check_rotations_of() {
  for (const std::int64_t head_dim : {2, 6, 16, 34, 64, 128}) {
    for (const bool inverse : {false, true}) {
      check_rotation<T>(1, head_dim, 0, 0, inverse);
      check_rotation<T>(3, head_dim, 7, 0, inverse);
      check_rotation<T>(4, head_dim, 0, 5, inverse);
    }
  }
}

TEST(Rotary, Float32) {
  check_rotations_of<float>();
}
TEST(Rotary, BFloat16) {
  check_rotations_of<BFloat16>();
}
TEST(Rotary, Float16) {
  check_rotations_of<Float16>();
}
TEST(Rotary, Float64) {
  check_rotations_of<double>();
}

TEST(Rotary, TheInverseTurnsBack) {
  constexpr std::int64_t rows = 400, heads = 4, head_dim = 64;
  const Tables tables(100, head_dim / 2);
  std::vector<double> x(rows * heads * head_dim);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<double>(i));
  auto turned = x;
  const int threads = compute_threads();
  for (const bool inverse : {false, true}) {
    set_compute_threads(inverse ? 3 : 1);
    cpu::rotary({.x = turned.data(),
                 .out = turned.data(),
                 .cosine = tables.cosine.data(),
                 .sine = tables.sine.data(),
                 .rows = rows,
                 .sequence = 100,
                 .heads = heads,
                 .head_dim = head_dim,
                 .first_position = 0,
                 .x_stride = heads * head_dim,
                 .out_stride = heads * head_dim,
                 .inverse = inverse,
                 .dtype = float64});
  }
  set_compute_threads(threads);
  // cos^2 + sin^2 of the fp32 tables is 1 within their rounding.
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(turned[i], x[i], 3e-7);
}

TEST(Rotary, RefusesAnOddHead) {
  float x[3] = {};
  EXPECT_THROW(cpu::rotary({.x = x,
                            .out = x,
                            .cosine = x,
                            .sine = x,
                            .rows = 1,
                            .sequence = 1,
                            .heads = 1,
                            .head_dim = 3,
                            .first_position = 0,
                            .x_stride = 3,
                            .out_stride = 3,
                            .inverse = false,
                            .dtype = float32}),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

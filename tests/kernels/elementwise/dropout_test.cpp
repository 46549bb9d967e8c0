// Dropout compared with scalar Philox, element by element, for every type and option.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/low_precision.h"
#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::to_compute;

constexpr RandomKey kDropoutKey{.seed = 77, .stream = (std::uint64_t{5} << 32) | 9};

template <class T>
std::vector<T> values(std::int64_t n, Distribution distribution, std::uint64_t stream) {
  std::vector<T> out(static_cast<std::size_t>(n));
  cpu::random_fill({.out = out.data(),
                    .n = n,
                    .first = 0,
                    .dtype = dtype_of<T>,
                    .key = {.seed = 1, .stream = stream},
                    .distribution = distribution,
                    .a = 0.0,
                    .b = 1.0});
  return out;
}

template <class T>
void check(std::int64_t first, std::int64_t n, float p, bool residual, bool accumulate) {
  using C = decltype(to_compute(T{}));
  const auto x = values<T>(n, Distribution::normal, 1);
  const auto r = values<T>(n, Distribution::normal, 2);
  const auto before = values<T>(n, Distribution::normal, 3);
  auto out = before;
  cpu::dropout({.x = x.data(),
                .residual = residual ? r.data() : nullptr,
                .out = out.data(),
                .n = n,
                .first = first,
                .dtype = dtype_of<T>,
                .key = kDropoutKey,
                .p = p,
                .accumulate = accumulate});
  const auto factor = static_cast<C>(1.0 / (1.0 - static_cast<double>(p)));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto element = static_cast<std::uint64_t>(first + i);
    const std::uint32_t draw = philox(kDropoutKey, element / 4)[element % 4];
    const bool keep = static_cast<double>(draw) >= std::floor(static_cast<double>(p) * 0x1p32);
    C value = keep ? to_compute(x[i]) * factor : C{0};
    if (residual) value = value + to_compute(r[i]);
    if (accumulate) value = to_compute(before[i]) + value;
    const T want = narrow<T>(value);
    ASSERT_EQ(std::memcmp(&out[i], &want, sizeof(T)), 0) << "element " << i << " of " << n;
  }
}

template <class T>
void check_dropout_of() {
  for (const std::int64_t n : {0, 1, 3, 17, 64, 1023, 1025, 5000}) {
    for (const std::int64_t first :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, (std::int64_t{1} << 34) - 6}) {
      check<T>(first, n, 0.1f, false, false);
      check<T>(first, n, 0.5f, true, false);
      check<T>(first, n, 0.3f, false, true);
      check<T>(first, n, 0.0f, true, true);
    }
  }
}

TEST(Dropout, Float32) {
  check_dropout_of<float>();
}
TEST(Dropout, BFloat16) {
  check_dropout_of<BFloat16>();
}
TEST(Dropout, Float16) {
  check_dropout_of<Float16>();
}
TEST(Dropout, Float64) {
  check_dropout_of<double>();
}

TEST(Dropout, KeepRate) {
  constexpr std::int64_t n = 1000000;
  const std::vector<float> x(n, 1.0f);
  std::vector<float> out(n);
  for (const float p : {0.0f, 0.1f, 0.5f, 0.9f, 1.0f}) {
    cpu::dropout({.x = x.data(),
                  .residual = nullptr,
                  .out = out.data(),
                  .n = n,
                  .first = 0,
                  .dtype = float32,
                  .key = kDropoutKey,
                  .p = p});
    std::int64_t kept = 0;
    for (const float value : out) kept += value != 0 ? 1 : 0;
    EXPECT_NEAR(static_cast<double>(kept), n * (1.0 - p), 5 * std::sqrt(n * p * (1.0 - p)) + 0.5);
  }
}

TEST(Dropout, InPlaceCutAndThreadsGiveTheSameBits) {
  constexpr std::int64_t n = 100003;
  const auto x = values<float>(n, Distribution::normal, 4);
  const int threads = compute_threads();
  std::vector<float> whole(n);
  const auto run = [](const float* from, float* out, std::int64_t first, std::int64_t count) {
    cpu::dropout({.x = from,
                  .residual = nullptr,
                  .out = out,
                  .n = count,
                  .first = first,
                  .dtype = float32,
                  .key = kDropoutKey,
                  .p = 0.2f});
  };
  set_compute_threads(1);
  run(x.data(), whole.data(), 0, n);
  for (const int workers : {1, 2, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t cut : {1, 6, 4099, 50001}) {
      auto in_place = x;
      run(in_place.data(), in_place.data(), 0, cut);
      run(in_place.data() + cut, in_place.data() + cut, cut, n - cut);
      EXPECT_EQ(std::memcmp(in_place.data(), whole.data(), n * sizeof(float)), 0);
    }
  }
  set_compute_threads(threads);
}

TEST(Dropout, RefusesInvalidProbabilities) {
  float x = 1;
  for (const float p : {-0.1f, 1.1f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(cpu::dropout({.x = &x,
                               .residual = nullptr,
                               .out = &x,
                               .n = 1,
                               .first = 0,
                               .dtype = float32,
                               .key = kDropoutKey,
                               .p = p}),
                 std::logic_error);
  }
}

}  // namespace
}  // namespace tessera::kernels

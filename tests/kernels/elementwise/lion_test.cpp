// Lion compared with scalar steps, bit for bit with the same order of operations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::same_bits;
using testing::to_compute;

constexpr double lion_lr = 3e-3, lion_beta1 = 0.9, lion_beta2 = 0.97, lion_decay = 0.1;
constexpr float lion_scale = 0.25f;

template <class T, class Grad, class Copy>
struct LionRun {
  std::vector<T> param, m;
  std::vector<Grad> grad;
  std::vector<Copy> copy;

  explicit LionRun(std::int64_t n)
      : param(static_cast<std::size_t>(n)),
        m(param.size()),
        grad(param.size()),
        copy(param.size()) {
    std::mt19937 generator(1);
    std::normal_distribution<double> distribution;
    for (T& value : param) value = narrow<T>(distribution(generator));
  }
  // Every seventh gradient is 0.
  void draw_gradient(int step) {
    std::mt19937 generator(100u + static_cast<unsigned>(step));
    std::normal_distribution<double> distribution(0.0, 0.3);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      grad[i] = narrow<Grad>(i % 7 == 0 ? 0.0 : distribution(generator));
    }
  }
  LionStep call(std::int64_t first, std::int64_t n) {
    return {.param = param.data() + first,
            .grad = grad.data() + first,
            .m = m.data() + first,
            .copy = copy.data() + first,
            .n = n,
            .dtype = dtype_of<T>,
            .grad_dtype = dtype_of<Grad>,
            .copy_dtype = dtype_of<Copy>,
            .lr = lion_lr,
            .beta1 = lion_beta1,
            .beta2 = lion_beta2,
            .weight_decay = lion_decay,
            .grad_scale = lion_scale};
  }
  // The formula of the contract in type T, with scalars rounded once.
  void reference() {
    const T b1 = static_cast<T>(lion_beta1), b2 = static_cast<T>(lion_beta2);
    const T rest1 = static_cast<T>(1 - lion_beta1), rest2 = static_cast<T>(1 - lion_beta2);
    const T lr = static_cast<T>(lion_lr), decay = static_cast<T>(lion_lr * lion_decay);
    for (std::size_t i = 0; i < param.size(); ++i) {
      const T g = static_cast<T>(to_compute(grad[i])) * static_cast<T>(lion_scale);
      param[i] -= decay * param[i];
      const T c = b1 * m[i] + rest1 * g;
      if (c != 0) param[i] -= c > 0 ? lr : -lr;
      m[i] = b2 * m[i] + rest2 * g;
      copy[i] = narrow<Copy>(param[i]);
    }
  }
};

template <class T, class Grad, class Copy>
void check_lion() {
  for (const std::int64_t n : {1, 5, 16, 31, 100, 2049}) {
    LionRun<T, Grad, Copy> got(n), want(n);
    for (int step = 1; step <= 5; ++step) {
      got.draw_gradient(step);
      want.draw_gradient(step);
      cpu::lion_step(got.call(0, n));
      want.reference();
      ASSERT_TRUE(same_bits(got.m, want.m)) << n << " elements at step " << step;
      ASSERT_TRUE(same_bits(got.param, want.param)) << n << " elements at step " << step;
      ASSERT_TRUE(same_bits(got.copy, want.copy)) << n << " elements at step " << step;
    }
  }
}

TEST(Lion, EveryTypeBitForBit) {
  check_lion<float, float, BFloat16>();
  check_lion<float, float, float>();
  check_lion<float, float, Float16>();
  check_lion<float, BFloat16, BFloat16>();
  check_lion<float, Float16, Float16>();
  check_lion<double, double, double>();
  check_lion<double, double, float>();
  check_lion<double, float, BFloat16>();
  check_lion<double, BFloat16, Float16>();
}

TEST(Lion, ZeroDoesNotMoveAndNaNStaysVisible) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> param(40, 2.0f), m(40), grad(40);
  grad[3] = nan;
  grad[5] = -1e-30f;
  grad[39] = 1e-30f;
  cpu::lion_step({.param = param.data(),
                  .grad = grad.data(),
                  .m = m.data(),
                  .copy = nullptr,
                  .n = 40,
                  .dtype = float32,
                  .grad_dtype = float32,
                  .copy_dtype = float32,
                  .lr = 0.5,
                  .beta1 = 0.9,
                  .beta2 = 0.99,
                  .weight_decay = 0,
                  .grad_scale = 1});
  for (std::size_t i = 0; i < param.size(); ++i) {
    if (i == 3) {
      EXPECT_TRUE(std::isnan(param[i]));
    } else {
      EXPECT_EQ(param[i], i == 5 ? 2.5f : i == 39 ? 1.5f : 2.0f) << i;
    }
  }
}

TEST(Lion, CutsAndThreadsChangeNoBit) {
  constexpr std::int64_t n = 70001;
  LionRun<float, float, BFloat16> whole(n);
  whole.draw_gradient(1);
  const auto start = whole;
  const int threads = compute_threads();
  set_compute_threads(1);
  cpu::lion_step(whole.call(0, n));
  for (const int workers : {1, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t cut : {1, 15, 33333, 70000}) {
      auto parts = start;
      cpu::lion_step(parts.call(0, cut));
      cpu::lion_step(parts.call(cut, n - cut));
      EXPECT_TRUE(same_bits(parts.param, whole.param) && same_bits(parts.m, whole.m) &&
                  same_bits(parts.copy, whole.copy));
    }
  }
  set_compute_threads(threads);
}

// The same as piece by piece, each with or without decay.
TEST(Lion, DecaysInItsRangesOnly) {
  constexpr std::int64_t n = 40001;
  for (const auto& edges :
       {std::vector<std::int64_t>{}, {0}, {17}, {0, 16}, {5, 6, 7, 33000, 39999}, {64, 20000}}) {
    LionRun<float, float, BFloat16> table(n), pieces(n);
    table.draw_gradient(1);
    pieces.draw_gradient(1);
    LionStep step = table.call(0, n);
    static const std::int64_t none = 0;
    step.decay = {edges.empty() ? &none : edges.data(), static_cast<int>(edges.size())};
    cpu::lion_step(step);
    std::int64_t first = 0;
    bool decays = false;
    for (std::size_t i = 0; i <= edges.size(); ++i) {
      const std::int64_t end = i < edges.size() ? edges[i] : n;
      LionStep part = pieces.call(first, end - first);
      if (!decays) part.weight_decay = 0;
      cpu::lion_step(part);
      first = end;
      decays = !decays;
    }
    EXPECT_TRUE(same_bits(table.param, pieces.param) && same_bits(table.copy, pieces.copy))
        << edges.size() << " edges";
  }
}

TEST(Lion, TheCopyIsOptionalAndTypesAreChecked) {
  LionRun<float, float, BFloat16> with(100), without(100);
  with.draw_gradient(1);
  without.draw_gradient(1);
  cpu::lion_step(with.call(0, 100));
  LionStep step = without.call(0, 100);
  step.copy = nullptr;
  cpu::lion_step(step);
  EXPECT_TRUE(same_bits(with.param, without.param));
  step.grad_dtype = float64;
  EXPECT_THROW(cpu::lion_step(step), std::logic_error);
  step.grad_dtype = float32;
  step.dtype = bfloat16;
  EXPECT_THROW(cpu::lion_step(step), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

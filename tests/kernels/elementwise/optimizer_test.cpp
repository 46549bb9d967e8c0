// AdamW and SGD compared with scalar steps, bit for bit with the same order of operations, and with
// fp64.
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
using testing::same_bits;
using testing::to_compute;

template <class T>
std::vector<T> normal(std::int64_t n, unsigned seed, double deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> distribution(0.0, deviation);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& value : values) value = narrow<T>(distribution(generator));
  return values;
}
constexpr double kLr = 3e-3, kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8, kDecay = 0.1;
constexpr float kGradScale = 0.25f;

template <class T, class Grad, class Copy>
struct AdamWRun {
  std::vector<T> param, m, v;
  std::vector<Grad> grad;
  std::vector<Copy> copy;

  explicit AdamWRun(std::int64_t n)
      : param(normal<T>(n, 1, 1.0)),
        m(param.size()),
        v(param.size()),
        grad(param.size()),
        copy(param.size()) {}

  void draw_gradient(int step) {
    grad = normal<Grad>(static_cast<std::int64_t>(grad.size()), 100u + unsigned(step), 0.3);
  }
  AdamWStep call(int step, std::int64_t first, std::int64_t n) {
    return {.param = param.data() + first,
            .grad = grad.data() + first,
            .m = m.data() + first,
            .v = v.data() + first,
            .copy = copy.data() + first,
            .n = n,
            .dtype = dtype_of<T>,
            .grad_dtype = dtype_of<Grad>,
            .copy_dtype = dtype_of<Copy>,
            .lr = kLr,
            .beta1 = kBeta1,
            .beta2 = kBeta2,
            .eps = kEps,
            .weight_decay = kDecay,
            .correction1 = 1 - std::pow(kBeta1, step),
            .correction2 = 1 - std::pow(kBeta2, step),
            .grad_scale = kGradScale};
  }
  // The formula of the contract in type T, with scalars rounded once.
  void reference(int step) {
    const AdamWStep a = call(step, 0, 0);
    const T b1 = static_cast<T>(kBeta1), b2 = static_cast<T>(kBeta2), eps = static_cast<T>(kEps);
    const T rest1 = static_cast<T>(1 - kBeta1), rest2 = static_cast<T>(1 - kBeta2);
    const T decay = static_cast<T>(kLr * kDecay), size = static_cast<T>(kLr / a.correction1);
    const T root = static_cast<T>(std::sqrt(a.correction2));
    for (std::size_t i = 0; i < param.size(); ++i) {
      const T g = static_cast<T>(to_compute(grad[i])) * static_cast<T>(kGradScale);
      param[i] -= decay * param[i];
      m[i] = b1 * m[i] + rest1 * g;
      v[i] = b2 * v[i] + rest2 * g * g;
      param[i] -= size * m[i] / (std::sqrt(v[i]) / root + eps);
      copy[i] = narrow<Copy>(param[i]);
    }
  }
};

template <class T, class Grad, class Copy>
void check_adamw() {
  for (const std::int64_t n : {1, 5, 16, 31, 100, 2049}) {
    AdamWRun<T, Grad, Copy> got(n), want(n);
    for (int step = 1; step <= 5; ++step) {
      got.draw_gradient(step);
      want.draw_gradient(step);
      cpu::adamw_step(got.call(step, 0, n));
      want.reference(step);
      ASSERT_TRUE(same_bits(got.m, want.m) && same_bits(got.v, want.v)) << n << " at " << step;
      ASSERT_TRUE(same_bits(got.param, want.param)) << n << " elements at step " << step;
      ASSERT_TRUE(same_bits(got.copy, want.copy)) << n << " elements at step " << step;
    }
  }
}

TEST(AdamW, EveryTypeBitForBit) {
  check_adamw<float, float, BFloat16>();
  check_adamw<float, float, float>();
  check_adamw<float, float, Float16>();
  check_adamw<float, BFloat16, BFloat16>();
  check_adamw<float, Float16, Float16>();
  check_adamw<double, double, double>();
  check_adamw<double, double, float>();
  check_adamw<double, float, BFloat16>();
  check_adamw<double, BFloat16, Float16>();
}

TEST(AdamW, FollowsFloat64) {
  constexpr std::int64_t n = 1000;
  AdamWRun<float, float, float> single(n);
  AdamWRun<double, float, double> exact(n);
  exact.param.assign(single.param.begin(), single.param.end());
  for (int step = 1; step <= 50; ++step) {
    single.draw_gradient(step);
    exact.draw_gradient(step);
    cpu::adamw_step(single.call(step, 0, n));
    cpu::adamw_step(exact.call(step, 0, n));
  }
  for (std::int64_t i = 0; i < n; ++i) ASSERT_NEAR(single.param[i], exact.param[i], 2e-6) << i;
}

TEST(AdamW, CutsAndThreadsChangeNoBit) {
  constexpr std::int64_t n = 70001;
  AdamWRun<float, float, BFloat16> whole(n);
  whole.draw_gradient(1);
  const auto start = whole;
  const int threads = compute_threads();
  set_compute_threads(1);
  cpu::adamw_step(whole.call(1, 0, n));
  for (const int workers : {1, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t cut : {1, 15, 33333, 70000}) {
      auto parts = start;
      cpu::adamw_step(parts.call(1, 0, cut));
      cpu::adamw_step(parts.call(1, cut, n - cut));
      EXPECT_TRUE(same_bits(parts.param, whole.param) && same_bits(parts.m, whole.m) &&
                  same_bits(parts.v, whole.v) && same_bits(parts.copy, whole.copy));
    }
  }
  set_compute_threads(threads);
}

// The same as piece by piece, each with or without decay.
TEST(AdamW, DecaysInItsRangesOnly) {
  constexpr std::int64_t n = 40001;
  const int threads = compute_threads();
  for (const auto& edges :
       {std::vector<std::int64_t>{}, {0}, {17}, {0, 16}, {5, 6, 7, 33000, 39999}, {64, 20000}}) {
    for (const int workers : {1, 3}) {
      set_compute_threads(workers);
      AdamWRun<float, float, BFloat16> table(n), pieces(n);
      table.draw_gradient(1);
      pieces.draw_gradient(1);
      AdamWStep step = table.call(2, 0, n);
      static const std::int64_t none = 0;
      step.decay = {edges.empty() ? &none : edges.data(), static_cast<int>(edges.size())};
      cpu::adamw_step(step);
      std::int64_t first = 0;
      bool decays = false;
      for (std::size_t i = 0; i <= edges.size(); ++i) {
        const std::int64_t end = i < edges.size() ? edges[i] : n;
        AdamWStep part = pieces.call(2, first, end - first);
        if (!decays) part.weight_decay = 0;
        cpu::adamw_step(part);
        first = end;
        decays = !decays;
      }
      EXPECT_TRUE(same_bits(table.param, pieces.param) && same_bits(table.v, pieces.v) &&
                  same_bits(table.copy, pieces.copy))
          << edges.size() << " edges";
    }
  }
  set_compute_threads(threads);
}

TEST(AdamW, TheCopyIsOptionalAndTypesAreChecked) {
  AdamWRun<float, float, BFloat16> with(100), without(100);
  with.draw_gradient(1);
  without.draw_gradient(1);
  cpu::adamw_step(with.call(1, 0, 100));
  AdamWStep step = without.call(1, 0, 100);
  step.copy = nullptr;
  cpu::adamw_step(step);
  EXPECT_TRUE(same_bits(with.param, without.param));
  step.grad_dtype = float64;
  EXPECT_THROW(cpu::adamw_step(step), std::logic_error);
  step.grad_dtype = float32;
  step.dtype = bfloat16;
  EXPECT_THROW(cpu::adamw_step(step), std::logic_error);
}

struct SgdOptions {
  double momentum, dampening, weight_decay;
  bool nesterov;
};

template <class T, class Grad, class Copy>
void check_sgd(const SgdOptions& options, std::int64_t n) {
  auto param = normal<T>(n, 1, 1.0);
  auto want = param;
  std::vector<T> buffer(param.size()), want_buffer(param.size());
  std::vector<Copy> copy(param.size());
  for (int step = 1; step <= 4; ++step) {
    const auto grad = normal<Grad>(n, 50u + unsigned(step), 0.3);
    cpu::sgd_step({.param = param.data(),
                   .grad = grad.data(),
                   .momentum_buffer = options.momentum != 0 ? buffer.data() : nullptr,
                   .copy = copy.data(),
                   .n = n,
                   .dtype = dtype_of<T>,
                   .grad_dtype = dtype_of<Grad>,
                   .copy_dtype = dtype_of<Copy>,
                   .lr = 0.1,
                   .momentum = options.momentum,
                   .dampening = options.dampening,
                   .weight_decay = options.weight_decay,
                   .nesterov = options.nesterov,
                   .first_step = step == 1,
                   .grad_scale = kGradScale});
    const T momentum = static_cast<T>(options.momentum);
    for (std::size_t i = 0; i < param.size(); ++i) {
      const T g = static_cast<T>(to_compute(grad[i])) * static_cast<T>(kGradScale) +
                  static_cast<T>(options.weight_decay) * want[i];
      T direction = g;
      if (options.momentum != 0) {
        T& b = want_buffer[i];
        b = step == 1 ? g : momentum * b + static_cast<T>(1 - options.dampening) * g;
        direction = options.nesterov ? g + momentum * b : b;
      }
      want[i] -= static_cast<T>(0.1) * direction;
      const Copy rounded = narrow<Copy>(want[i]);
      ASSERT_EQ(std::memcmp(&copy[i], &rounded, sizeof(Copy)), 0) << i;
    }
    ASSERT_TRUE(same_bits(param, want));
    ASSERT_TRUE(same_bits(buffer, want_buffer));
  }
}

TEST(Sgd, EveryOptionAndTypeBitForBit) {
  for (const SgdOptions& options :
       {SgdOptions{0, 0, 0, false}, SgdOptions{0, 0, 0.01, false}, SgdOptions{0.9, 0, 0, false},
        SgdOptions{0.9, 0.1, 0.01, false}, SgdOptions{0.9, 0, 0.01, true}}) {
    for (const std::int64_t n : {1, 17, 130, 1031}) {
      check_sgd<float, float, BFloat16>(options, n);
      check_sgd<float, BFloat16, float>(options, n);
      check_sgd<float, Float16, Float16>(options, n);
      check_sgd<double, double, double>(options, n);
      check_sgd<double, float, BFloat16>(options, n);
    }
  }
}

TEST(Sgd, DecaysInItsRangesOnly) {
  std::vector<double> param(10, 1.0);
  const std::vector<double> grad(10, 0.0);
  const std::vector<std::int64_t> edges{2, 5, 9};
  cpu::sgd_step({.param = param.data(),
                 .grad = grad.data(),
                 .momentum_buffer = nullptr,
                 .copy = nullptr,
                 .n = 10,
                 .dtype = float64,
                 .grad_dtype = float64,
                 .copy_dtype = float64,
                 .lr = 0.5,
                 .momentum = 0,
                 .dampening = 0,
                 .weight_decay = 0.5,
                 .nesterov = false,
                 .first_step = true,
                 .grad_scale = 1,
                 .decay = {edges.data(), 3}});
  EXPECT_EQ(param, (std::vector<double>{1, 1, 0.75, 0.75, 0.75, 1, 1, 1, 1, 0.75}));
}

TEST(Sgd, MomentumNeedsABuffer) {
  float p = 1, g = 1;
  SgdStep step{.param = &p,
               .grad = &g,
               .momentum_buffer = nullptr,
               .copy = nullptr,
               .n = 1,
               .dtype = float32,
               .grad_dtype = float32,
               .copy_dtype = float32,
               .lr = 0.1,
               .momentum = 0.9,
               .dampening = 0,
               .weight_decay = 0,
               .nesterov = false,
               .first_step = true,
               .grad_scale = 1};
  EXPECT_THROW(cpu::sgd_step(step), std::logic_error);
  step.momentum = 0;
  cpu::sgd_step(step);
  EXPECT_EQ(p, 1 - 0.1f);
}

}  // namespace
}  // namespace tessera::kernels

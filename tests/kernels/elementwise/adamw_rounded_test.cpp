// AdamW with randomly rounded bf16 moments, compared with scalar steps bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::to_compute;

constexpr double rounded_rate = 3e-3, rounded_first_beta = 0.9, rounded_second_beta = 0.999,
                 rounded_epsilon = 1e-8, rounded_decay = 0.1;
constexpr float rounded_grad_factor = 0.25f;

BFloat16 rounded(float value, std::uint32_t draw) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto upper = static_cast<std::uint16_t>((bits + draw) >> 16);
  return std::bit_cast<BFloat16>(upper);
}

template <class Grad>
struct RoundedRun {
  std::vector<float> param;
  std::vector<BFloat16> m, v;
  std::vector<Grad> grad;

  explicit RoundedRun(std::int64_t n)
      : param(static_cast<std::size_t>(n)), m(param.size()), v(param.size()), grad(param.size()) {
    std::mt19937 generator(1);
    std::normal_distribution<float> distribution;
    for (float& value : param) value = distribution(generator);
  }
  void draw_gradient(int step) {
    std::mt19937 generator(100u + static_cast<unsigned>(step));
    std::normal_distribution<double> distribution(0.0, 0.3);
    for (Grad& value : grad) value = narrow<Grad>(distribution(generator));
  }
  AdamWRoundedStep call(std::int64_t first, std::int64_t n, int step, std::int64_t drawn = 5) {
    return {.param = param.data() + first,
            .grad = grad.data() + first,
            .m = m.data() + first,
            .v = v.data() + first,
            .n = n,
            .first = drawn + first,
            .grad_dtype = dtype_of<Grad>,
            .key = {.seed = 7, .stream = static_cast<std::uint64_t>(step)},
            .lr = rounded_rate,
            .beta1 = rounded_first_beta,
            .beta2 = rounded_second_beta,
            .eps = rounded_epsilon,
            .weight_decay = rounded_decay,
            .correction1 = 1 - std::pow(rounded_first_beta, step),
            .correction2 = 1 - std::pow(rounded_second_beta, step),
            .grad_scale = rounded_grad_factor};
  }
  void reference(int step) {
    const AdamWRoundedStep a = call(0, 0, step);
    const auto b1 = static_cast<float>(a.beta1), b2 = static_cast<float>(a.beta2);
    const auto rest1 = static_cast<float>(1 - a.beta1), rest2 = static_cast<float>(1 - a.beta2);
    const auto lr = static_cast<float>(a.lr / a.correction1);
    const auto root = static_cast<float>(std::sqrt(a.correction2));
    const auto shrink = static_cast<float>(a.lr * a.weight_decay);
    for (std::size_t i = 0; i < param.size(); ++i) {
      const float g = static_cast<float>(to_compute(grad[i])) * rounded_grad_factor;
      param[i] -= shrink * param[i];
      const float m_i = b1 * to_float(m[i]) + rest1 * g;
      const float v_i = b2 * to_float(v[i]) + rest2 * g * g;
      param[i] -= lr * m_i / (std::sqrt(v_i) / root + static_cast<float>(rounded_epsilon));
      const auto at = static_cast<std::uint64_t>(a.first) + i;
      const std::uint32_t word = philox(a.key, at / 4)[at % 4];
      m[i] = rounded(m_i, word & 0xffffu);
      v[i] = rounded(v_i, word >> 16);
    }
  }
  [[nodiscard]] bool equals(const RoundedRun& other) const {
    return std::memcmp(param.data(), other.param.data(), param.size() * sizeof(float)) == 0 &&
           std::memcmp(m.data(), other.m.data(), m.size() * sizeof(BFloat16)) == 0 &&
           std::memcmp(v.data(), other.v.data(), v.size() * sizeof(BFloat16)) == 0;
  }
};

template <class Grad>
void check_rounded() {
  for (const std::int64_t n : {1, 5, 16, 255, 256, 257, 2049}) {
    RoundedRun<Grad> got(n), want(n);
    for (int step = 1; step <= 4; ++step) {
      got.draw_gradient(step);
      want.draw_gradient(step);
      cpu::adamw_rounded_step(got.call(0, n, step));
      want.reference(step);
      ASSERT_TRUE(got.equals(want)) << n << " elements at step " << step;
    }
  }
}

TEST(AdamWRounded, EveryTypeBitForBit) {
  check_rounded<float>();
  check_rounded<BFloat16>();
  check_rounded<Float16>();
}

TEST(AdamWRounded, CutsAndThreadsChangeNoBit) {
  constexpr std::int64_t n = 70001;
  RoundedRun<float> whole(n);
  whole.draw_gradient(1);
  const auto start = whole;
  const int threads = compute_threads();
  set_compute_threads(1);
  cpu::adamw_rounded_step(whole.call(0, n, 1));
  for (const int workers : {1, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t cut : {1, 15, 33333, 70000}) {
      auto parts = start;
      cpu::adamw_rounded_step(parts.call(0, cut, 1));
      cpu::adamw_rounded_step(parts.call(cut, n - cut, 1));
      EXPECT_TRUE(parts.equals(whole)) << cut;
    }
  }
  set_compute_threads(threads);
}

// 2000 steps with a square of 1, each 1/1000 of the way: rounded to nearest, the second moment
// would stop where 1/1000 of the way is less than half of a bf16 step.
TEST(AdamWRounded, IsRightOnTheMean) {
  constexpr std::int64_t n = 4096;
  RoundedRun<float> run(n);
  run.grad.assign(n, 1 / rounded_grad_factor);
  for (int step = 1; step <= 2000; ++step) cpu::adamw_rounded_step(run.call(0, n, step));
  double mean = 0;
  for (const BFloat16 value : run.v) mean += static_cast<double>(to_float(value)) / n;
  EXPECT_NEAR(mean, 1 - std::pow(rounded_second_beta, 2000), 0.002);
}

TEST(AdamWRounded, NaNAndInfinityStay) {
  RoundedRun<float> run(40);
  run.grad[3] = std::nanf("");
  run.grad[5] = std::numeric_limits<float>::infinity();
  cpu::adamw_rounded_step(run.call(0, 40, 1));
  EXPECT_TRUE(std::isnan(to_float(run.m[3])) && std::isnan(to_float(run.v[3])));
  EXPECT_TRUE(std::isinf(to_float(run.m[5])) && std::isinf(to_float(run.v[5])));
  EXPECT_FALSE(std::isnan(to_float(run.m[4])));
  AdamWRoundedStep step = run.call(0, 40, 1);
  step.grad_dtype = float64;
  EXPECT_THROW(cpu::adamw_rounded_step(step), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

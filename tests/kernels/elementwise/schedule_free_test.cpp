// Schedule-free AdamW compared with scalar steps, bit for bit with the same order of operations.
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

constexpr double sf_lr = 3e-3, sf_beta2 = 0.97, sf_eps = 1e-6, sf_decay = 0.1;
constexpr float sf_scale = 0.25f;

template <class T>
T between(T begin, T end, double part) {
  const T near = static_cast<T>(part < 0.5 ? part : 1 - part);
  return part < 0.5 ? begin + near * (end - begin) : end + near * (begin - end);
}

template <class T, class Grad>
struct ScheduleFreeRun {
  double beta1;
  std::vector<T> param, z, v, average;
  std::vector<Grad> grad;

  // z and the average begin with NaN: the first step must not read them.
  explicit ScheduleFreeRun(std::int64_t n, double first_beta = 0.9)
      : beta1(first_beta),
        param(static_cast<std::size_t>(n)),
        z(param.size(), std::numeric_limits<T>::quiet_NaN()),
        v(param.size()),
        average(z),
        grad(param.size()) {
    std::mt19937 generator(1);
    std::normal_distribution<double> distribution;
    for (T& value : param) value = narrow<T>(distribution(generator));
  }
  void draw_gradient(int step) {
    std::mt19937 generator(100u + static_cast<unsigned>(step));
    std::normal_distribution<double> distribution(0.0, 0.3);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      grad[i] = narrow<Grad>(i % 7 == 0 ? 0.0 : distribution(generator));
    }
  }
  ScheduleFreeStep call(int step, std::int64_t first, std::int64_t n) {
    return {.param = param.data() + first,
            .grad = grad.data() + first,
            .z = z.data() + first,
            .v = v.data() + first,
            .average = average.data() + first,
            .n = n,
            .dtype = dtype_of<T>,
            .grad_dtype = dtype_of<Grad>,
            .lr = sf_lr,
            .beta1 = beta1,
            .beta2 = sf_beta2,
            .eps = sf_eps,
            .weight_decay = sf_decay,
            .correction2 = 1 - std::pow(sf_beta2, step),
            .part = 1.0 / step,
            .first_step = step == 1,
            .grad_scale = sf_scale};
  }
  ScheduleFreePoint point(std::vector<T>& into) {
    return {.param = into.data(),
            .z = z.data(),
            .average = average.data(),
            .n = static_cast<std::int64_t>(into.size()),
            .dtype = dtype_of<T>,
            .beta1 = beta1};
  }
  // The formula of the contract in type T, with scalars rounded once.
  void reference(int step) {
    const T b2 = static_cast<T>(sf_beta2), rest2 = static_cast<T>(1 - sf_beta2);
    const T root = static_cast<T>(std::sqrt(1 - std::pow(sf_beta2, step)));
    if (step == 1) z = average = param;
    for (std::size_t i = 0; i < param.size(); ++i) {
      const T g = static_cast<T>(to_compute(grad[i])) * static_cast<T>(sf_scale);
      v[i] = b2 * v[i] + rest2 * g * g;
      const T direction = g / (std::sqrt(v[i]) / root + static_cast<T>(sf_eps)) +
                          static_cast<T>(sf_decay) * param[i];
      z[i] -= static_cast<T>(sf_lr) * direction;
      average[i] = between(average[i], z[i], 1.0 / step);
      param[i] = between(average[i], z[i], 1 - beta1);
    }
  }
};

template <class T, class Grad>
void check_schedule_free(double beta1 = 0.9) {
  for (const std::int64_t n : {1, 5, 16, 31, 100, 2049}) {
    ScheduleFreeRun<T, Grad> got(n, beta1), want(n, beta1);
    for (int step = 1; step <= 5; ++step) {
      got.draw_gradient(step);
      want.draw_gradient(step);
      cpu::schedule_free_step(got.call(step, 0, n));
      want.reference(step);
      ASSERT_TRUE(same_bits(got.v, want.v)) << n << " elements at step " << step;
      ASSERT_TRUE(same_bits(got.z, want.z)) << n << " elements at step " << step;
      ASSERT_TRUE(same_bits(got.average, want.average)) << n << " elements at step " << step;
      ASSERT_TRUE(same_bits(got.param, want.param)) << n << " elements at step " << step;
      std::vector<T> again(got.param.size());
      cpu::schedule_free_point(got.point(again));
      ASSERT_TRUE(same_bits(again, got.param)) << n << " elements at step " << step;
    }
  }
}

TEST(ScheduleFree, EveryTypeBitForBit) {
  check_schedule_free<float, float>();
  check_schedule_free<float, BFloat16>();
  check_schedule_free<float, Float16>();
  check_schedule_free<double, double>();
  check_schedule_free<double, float>();
  check_schedule_free<double, BFloat16>();
  check_schedule_free<double, Float16>();
  check_schedule_free<float, float>(0.3);
  check_schedule_free<double, double>(0);
}

TEST(ScheduleFree, CutsAndThreadsChangeNoBit) {
  const std::int64_t n = 40'000;
  ScheduleFreeRun<float, float> whole(n);
  whole.draw_gradient(1);
  cpu::schedule_free_step(whole.call(1, 0, n));
  const int before = compute_threads();
  for (const int threads : {1, 3}) {
    set_compute_threads(threads);
    for (const std::int64_t cut : {1, 7, 8, 16'384, 39'999}) {
      ScheduleFreeRun<float, float> parts(n);
      parts.draw_gradient(1);
      cpu::schedule_free_step(parts.call(1, 0, cut));
      cpu::schedule_free_step(parts.call(1, cut, n - cut));
      EXPECT_TRUE(same_bits(parts.param, whole.param)) << cut;
      EXPECT_TRUE(same_bits(parts.average, whole.average)) << cut;
    }
  }
  set_compute_threads(before);
}

TEST(ScheduleFree, DecaysInItsRangesOnly) {
  const std::int64_t n = 203;
  const std::vector<std::int64_t> edges = {3, 17, 90, 91, 150};
  ScheduleFreeRun<float, float> table(n), pieces(n);
  table.draw_gradient(1);
  pieces.draw_gradient(1);
  ScheduleFreeStep step = table.call(1, 0, n);
  step.decay = {edges.data(), static_cast<int>(edges.size())};
  cpu::schedule_free_step(step);
  std::int64_t first = 0;
  for (std::size_t i = 0; i <= edges.size(); ++i) {
    const std::int64_t end = i == edges.size() ? n : edges[i];
    ScheduleFreeStep part = pieces.call(1, first, end - first);
    if (i % 2 == 0) part.weight_decay = 0;
    cpu::schedule_free_step(part);
    first = end;
  }
  EXPECT_TRUE(same_bits(table.param, pieces.param));
  EXPECT_TRUE(same_bits(table.z, pieces.z));
}

TEST(ScheduleFree, TypesAreChecked) {
  ScheduleFreeRun<float, float> run(10);
  ScheduleFreeStep step = run.call(1, 0, 10);
  step.grad_dtype = DType::float64;
  EXPECT_THROW(cpu::schedule_free_step(step), std::logic_error);
  step = run.call(1, 0, 10);
  step.dtype = DType::bfloat16;
  EXPECT_THROW(cpu::schedule_free_step(step), std::logic_error);
  ScheduleFreePoint point = run.point(run.param);
  point.dtype = DType::float16;
  EXPECT_THROW(cpu::schedule_free_point(point), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels

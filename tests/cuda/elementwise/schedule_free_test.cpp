// Schedule-free AdamW: the CPU's bits over several steps, for any start of a segment.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "cuda/elementwise/adamw_steps.h"
#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct ScheduleFreeArrays {
  ScheduleFreeArrays(std::size_t elements, DType dtype, DType grad_dtype, std::size_t offset)
      : n(static_cast<std::int64_t>(elements)),
        param(random_values(elements, dtype, 1), dtype, offset),
        grad(gradients(elements), grad_dtype, offset),
        z(std::vector<double>(elements, std::nan("")), dtype, offset),
        v(std::vector<double>(elements), dtype, offset),
        average(std::vector<double>(elements, std::nan("")), dtype, offset) {}

  kernels::ScheduleFreeStep call(bool device, int step, double beta1 = 0.9) {
    const auto memory = [&](MirroredArray& array) {
      return device ? array.device() : array.host();
    };
    kernels::ScheduleFreeStep a{};
    a.param = memory(param);
    a.grad = memory(grad);
    a.z = memory(z);
    a.v = memory(v);
    a.average = memory(average);
    a.n = n;
    a.dtype = param.dtype();
    a.grad_dtype = grad.dtype();
    a.lr = 3e-3;
    a.beta1 = beta1;
    a.beta2 = 0.95;
    a.eps = 1e-8;
    a.weight_decay = 0.1;
    a.correction2 = 1 - std::pow(a.beta2, step);
    a.part = 1.0 / step;
    a.first_step = step == 1;
    a.grad_scale = 0.73f;
    return a;
  }
  kernels::ScheduleFreePoint point(bool device) {
    return {.param = device ? grad.device() : grad.host(),
            .z = device ? z.device() : z.host(),
            .average = device ? average.device() : average.host(),
            .n = n,
            .dtype = param.dtype(),
            .beta1 = 0.9};
  }
  void expect_same(const char* kernel) const {
    for (const MirroredArray* array : {&param, &grad, &z, &v, &average})
      array->expect_same(kernel, "state");
  }

  std::int64_t n;
  MirroredArray param, grad, z, v, average;
};

TEST(CudaScheduleFree, HasTheBitsOfTheCpu) {
  for (const DType dtype : {float32, float64}) {
    for (const DType grad : floating_dtypes) {
      if (grad == float64 && dtype == float32) continue;
      for (const std::size_t offset : array_offsets) {
        for (const std::size_t n : array_lengths) {
          ScheduleFreeArrays arrays(n, dtype, grad, offset);
          TestContext context;
          for (const int step : {1, 2, 3}) {
            kernels::cuda::schedule_free_step(arrays.call(true, step), context.queue());
            kernels::cpu::schedule_free_step(arrays.call(false, step));
          }
          arrays.expect_same("schedule_free_step");
          if (grad != dtype) continue;
          kernels::cuda::schedule_free_point(arrays.point(true), context.queue());
          kernels::cpu::schedule_free_point(arrays.point(false));
          arrays.expect_same("schedule_free_point");
        }
      }
    }
  }
}

TEST(CudaScheduleFree, DecayRangesAndASmallFirstBeta) {
  std::vector<std::int64_t> edges;  // more than one launch takes
  for (std::int64_t edge = 1; edge < 300; edge += 2) edges.push_back(edge);
  ScheduleFreeArrays arrays(301, float32, bfloat16, 0);
  TestContext context;
  for (const int number : {1, 2}) {
    for (const bool device : {true, false}) {
      kernels::ScheduleFreeStep step = arrays.call(device, number, 0.3);
      step.decay = {edges.data(), static_cast<int>(edges.size())};
      if (device) {
        kernels::cuda::schedule_free_step(step, context.queue());
      } else {
        kernels::cpu::schedule_free_step(step);
      }
    }
  }
  arrays.expect_same("schedule_free_step");
}

TEST(CudaScheduleFree, RefusesOtherTypes) {
  ScheduleFreeArrays arrays(7, float32, float32, 0);
  TestContext context;
  kernels::ScheduleFreeStep step = arrays.call(true, 1);
  step.grad_dtype = float64;
  EXPECT_THROW(kernels::cuda::schedule_free_step(step, context.queue()), std::logic_error);
  kernels::ScheduleFreePoint point = arrays.point(true);
  point.dtype = bfloat16;
  EXPECT_THROW(kernels::cuda::schedule_free_point(point, context.queue()), std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

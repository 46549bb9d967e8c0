// AdamW with randomly rounded bf16 moments: the CPU's bits over several steps.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/elementwise/adamw_steps.h"
#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct RoundedMoments {
  RoundedMoments(std::size_t elements, DType grad_dtype, std::size_t offset)
      : n(static_cast<std::int64_t>(elements)),
        param(random_values(elements, float32, 1), float32, offset),
        grad(gradients(elements), grad_dtype, offset),
        m(std::vector<double>(elements), bfloat16, offset),
        v(std::vector<double>(elements), bfloat16, offset) {}

  kernels::AdamWRoundedStep call(bool device, int step, std::int64_t first) {
    const auto memory = [&](MirroredArray& array) {
      return device ? array.device() : array.host();
    };
    kernels::AdamWRoundedStep a{};
    a.param = memory(param);
    a.grad = memory(grad);
    a.m = memory(m);
    a.v = memory(v);
    a.n = n;
    a.first = first;
    a.grad_dtype = grad.dtype();
    a.key = {.seed = 3, .stream = static_cast<std::uint64_t>(step) << 33};
    set_common(a, step);
    return a;
  }
  void expect_same() const {
    for (const MirroredArray* array : {&param, &m, &v})
      array->expect_same("adamw_rounded_step", "state");
  }

  std::int64_t n;
  MirroredArray param, grad, m, v;
};

TEST(CudaAdamWRounded, HasTheBitsOfTheCpu) {
  for (const DType grad : {float32, bfloat16, float16}) {
    for (const std::size_t offset : array_offsets) {
      for (const std::size_t n : array_lengths) {
        for (const std::int64_t first : {0, 64, 1027}) {
          RoundedMoments moments(n, grad, offset);
          TestContext context;
          for (const int step : {1, 2, 3}) {
            kernels::cuda::adamw_rounded_step(moments.call(true, step, first), context.queue());
            kernels::cpu::adamw_rounded_step(moments.call(false, step, first));
          }
          moments.expect_same();
        }
      }
    }
  }
}

TEST(CudaAdamWRounded, DecayRanges) {
  std::vector<std::int64_t> edges;  // more than one launch takes
  for (std::int64_t edge = 1; edge < 300; edge += 2) edges.push_back(edge);
  RoundedMoments moments(301, bfloat16, 0);
  TestContext context;
  for (const bool device : {true, false}) {
    kernels::AdamWRoundedStep step = moments.call(device, 1, 12);
    step.decay = {edges.data(), static_cast<int>(edges.size())};
    if (device) {
      kernels::cuda::adamw_rounded_step(step, context.queue());
    } else {
      kernels::cpu::adamw_rounded_step(step);
    }
  }
  moments.expect_same();
}

}  // namespace
}  // namespace tessera::testing

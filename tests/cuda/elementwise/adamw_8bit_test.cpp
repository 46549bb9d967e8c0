// AdamW with 8-bit moments: the CPU's bits over several steps.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/eight_bit.h"
#include "cuda/elementwise/adamw_steps.h"
#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct Moments8Bit {
  Moments8Bit(std::size_t elements, DType grad_dtype, std::size_t offset)
      : n(static_cast<std::int64_t>(elements)),
        param(random_values(elements, float32, 1), float32, offset),
        grad(gradients(elements), grad_dtype, offset),
        m(std::vector<std::byte>(elements), uint8, offset),
        v(std::vector<std::byte>(elements), uint8, offset),
        m_scales(std::vector<double>(blocks()), float32),
        v_scales(std::vector<double>(blocks()), float32) {}

  [[nodiscard]] std::size_t blocks() const {
    return static_cast<std::size_t>((n + eight_bit_block - 1) / eight_bit_block);
  }
  kernels::AdamW8BitStep call(bool device, int step) {
    const auto memory = [&](MirroredArray& array) {
      return device ? array.device() : array.host();
    };
    kernels::AdamW8BitStep a{};
    a.param = memory(param);
    a.grad = memory(grad);
    a.m_codes = memory(m);
    a.v_codes = memory(v);
    a.m_scales = memory(m_scales);
    a.v_scales = memory(v_scales);
    a.n = n;
    a.grad_dtype = grad.dtype();
    set_common(a, step);
    return a;
  }
  void expect_same() const {
    for (const MirroredArray* array : {&param, &m_scales, &v_scales})
      array->expect_same("adamw_8bit_step", "floats");
    EXPECT_EQ(m.device_bytes(), m.host_bytes());
    EXPECT_EQ(v.device_bytes(), v.host_bytes());
  }

  std::int64_t n;
  MirroredArray param, grad, m, v, m_scales, v_scales;
};

TEST(CudaAdamW8Bit, HasTheBitsOfTheCpu) {
  for (const DType grad : {float32, bfloat16, float16}) {
    for (const std::size_t offset : {0, 8, 3}) {
      for (const std::size_t n : {1, 255, 256, 2500}) {
        Moments8Bit moments(n, grad, offset);
        TestContext context;
        for (const int step : {1, 2, 3}) {
          kernels::cuda::adamw_8bit_step(moments.call(true, step), context.queue());
          kernels::cpu::adamw_8bit_step(moments.call(false, step));
        }
        moments.expect_same();
      }
    }
  }
}

TEST(CudaAdamW8Bit, DecayRangesLieBetweenBlocks) {
  const std::vector<std::int64_t> edges = {256, 768, 1024};
  Moments8Bit moments(2500, float32, 0);
  TestContext context;
  for (const bool device : {true, false}) {
    kernels::AdamW8BitStep step = moments.call(device, 1);
    step.decay = {edges.data(), 3};
    if (device) {
      kernels::cuda::adamw_8bit_step(step, context.queue());
    } else {
      kernels::cpu::adamw_8bit_step(step);
    }
  }
  moments.expect_same();
  const std::int64_t inside = 100;
  kernels::AdamW8BitStep step = moments.call(true, 1);
  step.decay = {&inside, 1};
  EXPECT_THROW(kernels::cuda::adamw_8bit_step(step, context.queue()), std::logic_error);
  step = moments.call(true, 1);
  step.grad_dtype = float64;
  EXPECT_THROW(kernels::cuda::adamw_8bit_step(step, context.queue()), std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

// Bias with GELU, and SwiGLU, forward and backward, compared with the CPU's fp64.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

struct ActivationCase {
  std::int64_t rows, dim;
  std::size_t offset = 0, bias_offset = 0;
  bool bias = true;
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(rows * dim); }
};
constexpr ActivationCase activation_cases[] = {{4, 128},      {5, 77},      {3, 24, 1, 1},
                                               {3, 24, 0, 1}, {7, 3, 1, 0}, {1, 203, 3},
                                               {0, 5},        {5, 0},       {3, 65, 0, 0, false}};

void check_bias_gelu(const ActivationCase& s, DType dtype, bool exact) {
  const auto dim = static_cast<std::size_t>(s.dim);
  const std::vector<double> x_values = random_values(s.size(), dtype, 1, 2);
  const std::vector<double> bias_values = random_values(dim, dtype, 2);
  MirroredArray x(x_values, dtype, s.offset), bias(bias_values, dtype, s.bias_offset);
  MirroredArray out(std::vector<double>(s.size(), 9), dtype, s.offset);
  std::vector<double> reference(s.size());
  TestContext context;
  kernels::cuda::bias_gelu(
      {x.device(), s.bias ? bias.device() : nullptr, out.device(), s.rows, s.dim, exact, dtype},
      context.queue());
  kernels::cpu::bias_gelu(
      {x.host(), s.bias ? bias.host() : nullptr, out.host(), s.rows, s.dim, exact, dtype});
  kernels::cpu::bias_gelu({x_values.data(), s.bias ? bias_values.data() : nullptr, reference.data(),
                           s.rows, s.dim, exact, float64});
  expect_within_bound("bias_gelu", exact ? "erf" : "tanh", dtype, out.device_values(),
                      out.host_values(), reference);
  const std::vector<std::byte> apart = out.device_bytes();
  kernels::cuda::bias_gelu(
      {x.device(), s.bias ? bias.device() : nullptr, x.device(), s.rows, s.dim, exact, dtype},
      context.queue());
  EXPECT_TRUE(x.device_bytes() == apart) << "in place";
}

void check_bias_gelu_backward(const ActivationCase& s, DType dtype, bool exact, bool again) {
  const auto dim = static_cast<std::size_t>(s.dim);
  const std::vector<double> x_values = random_values(s.size(), dtype, 1, 2);
  const std::vector<double> bias_values = random_values(dim, dtype, 2);
  const std::vector<double> dout_values = random_values(s.size(), dtype, 3);
  const std::vector<double> nothing(s.size(), 9);
  MirroredArray x(x_values, dtype, s.offset), bias(bias_values, dtype, s.bias_offset);
  MirroredArray dout(dout_values, dtype, s.offset), dx(nothing, dtype, s.offset);
  MirroredArray out(nothing, dtype, s.offset), forward(nothing, dtype, s.offset);
  std::vector<double> reference(s.size());
  const void* device_bias = s.bias ? bias.device() : nullptr;
  TestContext context;
  kernels::cuda::bias_gelu({x.device(), device_bias, forward.device(), s.rows, s.dim, exact, dtype},
                           context.queue());
  kernels::cuda::bias_gelu_backward({dout.device(), x.device(), device_bias, dx.device(),
                                     again ? out.device() : nullptr, s.rows, s.dim, exact, dtype},
                                    context.queue());
  kernels::cpu::bias_gelu_backward({dout.host(), x.host(), s.bias ? bias.host() : nullptr,
                                    dx.host(), nullptr, s.rows, s.dim, exact, dtype});
  kernels::cpu::bias_gelu_backward({dout_values.data(), x_values.data(),
                                    s.bias ? bias_values.data() : nullptr, reference.data(),
                                    nullptr, s.rows, s.dim, exact, float64});
  expect_within_bound("bias_gelu_backward", exact ? "erf" : "tanh", dtype, dx.device_values(),
                      dx.host_values(), reference);
  if (!again) return;
  EXPECT_TRUE(out.device_bytes() == forward.device_bytes()) << "recomputed";
  kernels::cuda::bias_gelu_backward({dout.device(), x.device(), device_bias, dout.device(),
                                     x.device(), s.rows, s.dim, exact, dtype},
                                    context.queue());
  EXPECT_TRUE(dout.device_bytes() == dx.device_bytes()) << "dx over dout";
  EXPECT_TRUE(x.device_bytes() == forward.device_bytes()) << "out over x";
}

TEST(CudaActivation, BiasGelu) {
  for (const ActivationCase& shape : activation_cases) {
    for (const DType dtype : floating_dtypes) {
      check_bias_gelu(shape, dtype, false);
      check_bias_gelu(shape, dtype, true);
    }
  }
}

TEST(CudaActivation, BiasGeluBackward) {
  for (const ActivationCase& shape : activation_cases) {
    for (const DType dtype : floating_dtypes) {
      for (const bool exact : {false, true}) check_bias_gelu_backward(shape, dtype, exact, true);
      check_bias_gelu_backward(shape, dtype, true, false);
    }
  }
}

// gate and up: halves of packed rows, or rows with their own strides.
struct SwiGluShape {
  std::int64_t rows, dim, gate_stride, up_stride;
  std::size_t gate_offset = 0, up_offset = 0, out_offset = 0;
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(rows * dim); }
  [[nodiscard]] std::size_t gate_size() const { return extent(gate_stride); }
  [[nodiscard]] std::size_t up_size() const { return extent(up_stride); }

 private:
  [[nodiscard]] std::size_t extent(std::int64_t stride) const {
    return rows == 0 ? 0 : static_cast<std::size_t>((rows - 1) * stride + dim);
  }
};
constexpr SwiGluShape swiglu_shapes[] = {
    {4, 64, 128, 128}, {5, 24, 24, 40},          {5, 21, 42, 42},          {3, 64, 64, 64, 1, 1, 1},
    {3, 16, 17, 16},   {2, 101, 101, 103, 3, 0}, {3, 32, 64, 64, 0, 0, 1}, {0, 8, 8, 8}};

void check_swiglu(const SwiGluShape& s, DType dtype) {
  const std::vector<double> gate_values = random_values(s.gate_size(), dtype, 1, 2);
  const std::vector<double> up_values = random_values(s.up_size(), dtype, 2);
  MirroredArray gate(gate_values, dtype, s.gate_offset), up(up_values, dtype, s.up_offset);
  MirroredArray out(std::vector<double>(s.size(), 9), dtype, s.out_offset);
  std::vector<double> reference(s.size());
  TestContext context;
  kernels::cuda::swiglu(
      {gate.device(), up.device(), out.device(), s.rows, s.dim, s.gate_stride, s.up_stride, dtype},
      context.queue());
  kernels::cpu::swiglu(
      {gate.host(), up.host(), out.host(), s.rows, s.dim, s.gate_stride, s.up_stride, dtype});
  kernels::cpu::swiglu({gate_values.data(), up_values.data(), reference.data(), s.rows, s.dim,
                        s.gate_stride, s.up_stride, float64});
  expect_within_bound("swiglu", "out", dtype, out.device_values(), out.host_values(), reference);
}

void check_swiglu_backward(const SwiGluShape& s, DType dtype, bool again) {
  const std::vector<double> gate_values = random_values(s.gate_size(), dtype, 1, 2);
  const std::vector<double> up_values = random_values(s.up_size(), dtype, 2);
  const std::vector<double> dout_values = random_values(s.size(), dtype, 3);
  // The gaps between the rows must not change: both sides start with the same values.
  const std::vector<double> gate_old(s.gate_size(), 7), up_old(s.up_size(), 7);
  const std::vector<double> nothing(s.size(), 9);
  MirroredArray gate(gate_values, dtype, s.gate_offset), dgate(gate_old, dtype, s.gate_offset);
  MirroredArray up(up_values, dtype, s.up_offset), dup(up_old, dtype, s.up_offset);
  MirroredArray dout(dout_values, dtype, s.out_offset), out(nothing, dtype, s.out_offset);
  MirroredArray forward(nothing, dtype, s.out_offset);
  std::vector<double> exact_dgate = gate_old, exact_dup = up_old;
  TestContext context;
  kernels::cuda::swiglu({gate.device(), up.device(), forward.device(), s.rows, s.dim, s.gate_stride,
                         s.up_stride, dtype},
                        context.queue());
  kernels::cuda::swiglu_backward(
      {dout.device(), gate.device(), up.device(), dgate.device(), dup.device(),
       again ? out.device() : nullptr, s.rows, s.dim, s.gate_stride, s.up_stride, dtype},
      context.queue());
  kernels::cpu::swiglu_backward({dout.host(), gate.host(), up.host(), dgate.host(), dup.host(),
                                 nullptr, s.rows, s.dim, s.gate_stride, s.up_stride, dtype});
  kernels::cpu::swiglu_backward({dout_values.data(), gate_values.data(), up_values.data(),
                                 exact_dgate.data(), exact_dup.data(), nullptr, s.rows, s.dim,
                                 s.gate_stride, s.up_stride, float64});
  expect_within_bound("swiglu_backward", "dgate", dtype, dgate.device_values(), dgate.host_values(),
                      exact_dgate);
  expect_within_bound("swiglu_backward", "dup", dtype, dup.device_values(), dup.host_values(),
                      exact_dup);
  if (again) {
    EXPECT_TRUE(out.device_bytes() == forward.device_bytes()) << "recomputed";
  }
}

TEST(CudaActivation, SwiGlu) {
  for (const SwiGluShape& shape : swiglu_shapes) {
    for (const DType dtype : floating_dtypes) check_swiglu(shape, dtype);
  }
}

TEST(CudaActivation, SwiGluBackward) {
  for (const SwiGluShape& shape : swiglu_shapes) {
    for (const DType dtype : floating_dtypes) {
      check_swiglu_backward(shape, dtype, true);
      check_swiglu_backward(shape, dtype, false);
    }
  }
}

}  // namespace
}  // namespace tessera::testing

// Unary functions and their backward, compared with the CPU's fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::UnaryOp;

struct NamedOp {
  UnaryOp op;
  const char* name;
};
constexpr NamedOp all_ops[] = {
    {UnaryOp::negate, "negate"},       {UnaryOp::relu, "relu"},    {UnaryOp::gelu_erf, "gelu_erf"},
    {UnaryOp::gelu_tanh, "gelu_tanh"}, {UnaryOp::silu, "silu"},    {UnaryOp::tanh, "tanh"},
    {UnaryOp::sigmoid, "sigmoid"},     {UnaryOp::exp, "exp"},      {UnaryOp::log, "log"},
    {UnaryOp::sqrt, "sqrt"},           {UnaryOp::square, "square"}};

// Normal draws; positive ones for the functions that need them.
std::vector<double> inputs_of(UnaryOp op, std::size_t n, DType dtype) {
  std::vector<double> values = random_values(n, dtype, 1, 2);
  if (op == UnaryOp::log || op == UnaryOp::sqrt) {
    for (double& value : values) value = std::abs(value) + 0.125;
  }
  return decode(encode(values, dtype), dtype);
}

std::vector<double> exact_forward(UnaryOp op, const std::vector<double>& x) {
  std::vector<double> out(x.size());
  kernels::cpu::unary({op, x.data(), out.data(), static_cast<std::int64_t>(x.size()), float64});
  return out;
}

// dx starts as `old` if given.
std::vector<double> exact_backward(UnaryOp op, const std::vector<double>& dout,
                                   const std::vector<double>& x, const std::vector<double>& old) {
  std::vector<double> dx = old.empty() ? std::vector<double>(x.size()) : old;
  kernels::cpu::unary_backward({op, dout.data(), x.data(), dx.data(),
                                static_cast<std::int64_t>(x.size()), float64, !old.empty()});
  return dx;
}

void check_forward(const NamedOp& op, DType dtype, std::size_t n, std::size_t x_offset,
                   std::size_t out_offset) {
  const std::vector<double> values = inputs_of(op.op, n, dtype);
  MirroredArray x(values, dtype, x_offset);
  MirroredArray out(std::vector<double>(n, 9), dtype, out_offset);
  const auto count = static_cast<std::int64_t>(n);
  TestContext context;
  kernels::cuda::unary({op.op, x.device(), out.device(), count, dtype}, context.queue());
  kernels::cpu::unary({op.op, x.host(), out.host(), count, dtype});
  expect_within_bound("unary", op.name, dtype, out.device_values(), out.host_values(),
                      exact_forward(op.op, values));
}

void check_backward(const NamedOp& op, DType dtype, std::size_t n, bool accumulate,
                    std::size_t offset, std::size_t dx_offset) {
  const std::vector<double> values = inputs_of(op.op, n, dtype);
  const std::vector<double> gradients = random_values(n, dtype, 2);
  const std::vector<double> old = random_values(n, dtype, 3);
  MirroredArray x(values, dtype, offset);
  MirroredArray dout(gradients, dtype, offset);
  MirroredArray dx(old, dtype, dx_offset);
  const auto count = static_cast<std::int64_t>(n);
  TestContext context;
  kernels::cuda::unary_backward(
      {op.op, dout.device(), x.device(), dx.device(), count, dtype, accumulate}, context.queue());
  kernels::cpu::unary_backward({op.op, dout.host(), x.host(), dx.host(), count, dtype, accumulate});
  expect_within_bound(
      "unary_backward", op.name, dtype, dx.device_values(), dx.host_values(),
      exact_backward(op.op, gradients, values, accumulate ? old : std::vector<double>{}));
}

TEST(CudaUnary, Forward) {
  for (const NamedOp& op : all_ops) {
    for (const DType dtype : floating_dtypes) {
      check_forward(op, dtype, 1003, 0, 0);
      check_forward(op, dtype, 75, 1, 1);  // equally far from a boundary
      check_forward(op, dtype, 75, 3, 0);
      check_forward(op, dtype, 0, 0, 0);
    }
  }
}

TEST(CudaUnary, Backward) {
  for (const NamedOp& op : all_ops) {
    for (const DType dtype : floating_dtypes) {
      check_backward(op, dtype, 1003, false, 0, 0);
      check_backward(op, dtype, 75, true, 1, 1);
      check_backward(op, dtype, 75, true, 1, 2);
      check_backward(op, dtype, 0, false, 0, 0);
    }
  }
}

TEST(CudaUnary, InPlaceGivesTheSameBits) {
  constexpr std::int64_t n = 75;
  for (const DType dtype : floating_dtypes) {
    for (const NamedOp& op : all_ops) {
      const std::vector<double> values = inputs_of(op.op, n, dtype);
      const DeviceMemory x(values, dtype);
      const DeviceMemory dout(random_values(n, dtype, 2), dtype);
      const DeviceMemory out(x.bytes()), dx(x.bytes());
      const DeviceMemory over_x(x.read()), over_dout(dout.read()), dx_over_x(x.read());
      TestContext context;
      const auto queue = context.queue();
      kernels::cuda::unary({op.op, x.data(), out.data(), n, dtype}, queue);
      kernels::cuda::unary({op.op, over_x.data(), over_x.data(), n, dtype}, queue);
      kernels::cuda::unary_backward({op.op, dout.data(), x.data(), dx.data(), n, dtype}, queue);
      kernels::cuda::unary_backward({op.op, over_dout.data(), x.data(), over_dout.data(), n, dtype},
                                    queue);
      kernels::cuda::unary_backward(
          {op.op, dout.data(), dx_over_x.data(), dx_over_x.data(), n, dtype}, queue);
      EXPECT_TRUE(over_x.read() == out.read()) << op.name;
      EXPECT_TRUE(over_dout.read() == dx.read()) << op.name;
      EXPECT_TRUE(dx_over_x.read() == dx.read()) << op.name;
    }
  }
}

// The start of an array decides which elements are processed as vectors, but changes no element's
// bits.
TEST(CudaUnary, CutsChangeNoBit) {
  constexpr std::size_t n = 75;
  for (const DType dtype : floating_dtypes) {
    for (const NamedOp& op : all_ops) {
      const DeviceMemory x(inputs_of(op.op, n, dtype), dtype);
      const DeviceMemory whole(x.bytes()), parts(x.bytes());
      TestContext context;
      kernels::cuda::unary({op.op, x.data(), whole.data(), n, dtype}, context.queue());
      for (std::size_t begin = 0; begin < n; begin += 25) {
        const std::size_t bytes = begin * size_of(dtype);
        kernels::cuda::unary({op.op, x.as<char>() + bytes, parts.as<char>() + bytes, 25, dtype},
                             context.queue());
      }
      EXPECT_TRUE(parts.read() == whole.read()) << op.name;
    }
  }
}

TEST(CudaUnary, SpecialValues) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> special = {std::numeric_limits<double>::quiet_NaN(),
                                       infinity,
                                       -infinity,
                                       0.0,
                                       -0.0,
                                       60000.0,
                                       -60000.0,
                                       88.0,
                                       -88.0,
                                       -104.0};
  for (const DType dtype : floating_dtypes) {
    for (const NamedOp& op : all_ops) {
      SCOPED_TRACE(op.name);
      const std::vector<double> values = decode(encode(special, dtype), dtype);
      MirroredArray x(values, dtype);
      MirroredArray out(values, dtype), dx(values, dtype);
      MirroredArray ones(std::vector<double>(special.size(), 1), dtype);
      const auto n = static_cast<std::int64_t>(special.size());
      TestContext context;
      kernels::cuda::unary({op.op, x.device(), out.device(), n, dtype}, context.queue());
      kernels::cuda::unary_backward({op.op, ones.device(), x.device(), dx.device(), n, dtype},
                                    context.queue());
      const std::vector<double> device = out.device_values(), gradient = dx.device_values();
      const std::vector<double> exact = decode(encode(exact_forward(op.op, values), dtype), dtype);
      EXPECT_TRUE(std::isnan(device[0]));
      if (op.op != UnaryOp::negate && op.op != UnaryOp::relu) {
        EXPECT_TRUE(std::isnan(gradient[0]));
      }
      for (std::size_t i = 3; i < values.size(); ++i) {
        if (std::isfinite(exact[i])) {
          EXPECT_NEAR(device[i], exact[i], 0.01 * std::abs(exact[i]) + 2e-38) << values[i];
        } else if (std::isnan(exact[i])) {
          EXPECT_TRUE(std::isnan(device[i])) << values[i];
        } else {
          EXPECT_EQ(device[i], exact[i]) << values[i];
        }
      }
      kernels::cpu::unary_backward({op.op, ones.host(), x.host(), dx.host(), n, dtype});
      const std::vector<double> low = dx.host_values();
      for (std::size_t i = 1; i < values.size(); ++i) {
        EXPECT_EQ(std::isfinite(gradient[i]), std::isfinite(low[i])) << values[i];
      }
    }
  }
}

TEST(CudaUnary, RefusesInvalidOperations) {
  const DeviceMemory x(16);
  TestContext context;
  const auto op = static_cast<UnaryOp>(200);
  EXPECT_THROW(kernels::cuda::unary({op, x.data(), x.data(), 4, float32}, context.queue()),
               std::logic_error);
  EXPECT_THROW(kernels::cuda::unary({UnaryOp::relu, x.data(), x.data(), 4, int32}, context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

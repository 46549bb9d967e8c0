// Pointwise functions: within the CPU's error of fp64, with operands that repeat; comparisons and
// selections: its bits.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

using kernels::Pointwise;
using kernels::PointwiseKind;
using kernels::PointwiseOp;

constexpr const char* pointwise_names[] = {
#define TESSERA_POINTWISE_NAME(name, operands, kind) #name,
    TESSERA_POINTWISE_OPS(TESSERA_POINTWISE_NAME)
#undef TESSERA_POINTWISE_NAME
};
constexpr int pointwise_count = static_cast<int>(std::size(pointwise_names));

// Positive numbers, so that every function is defined.
std::vector<double> positive(std::size_t n, DType dtype, unsigned seed) {
  std::vector<double> values = random_values(n, dtype, seed);
  for (double& value : values) value = std::abs(value) + 0.25;
  return values;
}

TEST(CudaPointwise, FunctionsOfAdjacentAndRepeatedOperands) {
  for (const DType dtype : floating_dtypes) {
    for (int number = 0; number < pointwise_count; ++number) {
      const auto op = static_cast<PointwiseOp>(number);
      if (kind_of(op) != PointwiseKind::arithmetic) continue;
      for (const bool repeated : {false, true}) {
        constexpr std::int64_t rows = 3, columns = 75;
        ComparedArray a(positive(rows * columns, dtype, 1), dtype, 1);
        ComparedArray b(positive(rows * columns, dtype, 2), dtype, 1);
        ComparedArray c(positive(rows * columns, dtype, 3), dtype, 1);
        ComparedArray out(rows * columns, dtype, 1);
        TestContext context;
        run_on_all_sides<Pointwise>(context, kernels::cuda::pointwise, kernels::cpu::pointwise,
                                    dtype, [&](Side side, DType type) {
                                      Pointwise call{.op = op,
                                                     .in = {a.at(side), b.at(side), c.at(side)},
                                                     .number = {0, 0, 0, 1.5},
                                                     .out = out.at(side),
                                                     .shape = {2, {rows, columns}, {}},
                                                     .dtype = type};
                                      for (int k = 0; k < 3; ++k) {
                                        call.shape.strides[k][0] = repeated && k == 1 ? 0 : columns;
                                        call.shape.strides[k][1] = repeated && k == 2 ? 0 : 1;
                                      }
                                      return call;
                                    });
        SCOPED_TRACE(pointwise_names[number]);
        out.expect_within_bound("pointwise", pointwise_names[number]);
      }
    }
  }
}

// Many turns away from 0, and in every quadrant.
TEST(CudaPointwise, SinesOfFarAngles) {
  const std::vector<double> angles = {0,    -0.7,  0.8,     2.4,       3.9,      -5.5,
                                      1e-4, 98.75, -4096.5, 123456.75, -9876543, 1e8};
  for (const DType dtype : {float32, float64}) {
    for (const PointwiseOp op : {PointwiseOp::sine, PointwiseOp::cosine}) {
      ComparedArray x(angles, dtype);
      ComparedArray out(static_cast<std::int64_t>(angles.size()), dtype);
      TestContext context;
      run_on_all_sides<Pointwise>(context, kernels::cuda::pointwise, kernels::cpu::pointwise, dtype,
                                  [&](Side side, DType type) {
                                    return Pointwise{.op = op,
                                                     .in = {x.at(side)},
                                                     .out = out.at(side),
                                                     .shape = {1, {12}, {{1}}},
                                                     .dtype = type};
                                  });
      out.expect_within_bound("pointwise", "far angles");
    }
  }
}

TEST(CudaPointwise, ComparisonsAndSelectionsOfEveryDtype) {
  constexpr std::int64_t rows = 4, columns = 33;
  for (const DType dtype : {float32, bfloat16, float16, float64}) {
    std::vector<double> values = random_values(rows * columns, dtype, 4);
    for (double& value : values) value = std::round(2 * value) / 2;
    values[3] = std::nan("");
    MirroredArray a(values, dtype);
    MirroredArray b({0.5, -0.5, 0, 1}, dtype);
    for (int number = 0; number < pointwise_count; ++number) {
      const auto op = static_cast<PointwiseOp>(number);
      if (kind_of(op) != PointwiseKind::comparison) continue;
      const DeviceMemory mask(rows * columns);
      std::vector<std::uint8_t> wanted(rows * columns);
      MirroredArray chosen(std::vector<double>(rows * columns, 9), dtype);
      Pointwise call{.op = op,
                     .in = {a.device(), b.device()},
                     .out = mask.data(),
                     .shape = {2, {rows, columns}, {{columns, 1}, {1, 0}}},
                     .dtype = dtype};
      TestContext context;
      kernels::cuda::pointwise(call, context.queue());
      Pointwise select{.op = PointwiseOp::select,
                       .in = {mask.data(), a.device()},
                       .number = {0, 0, 7},
                       .out = chosen.device(),
                       .shape = {1, {rows * columns}, {{1}, {1}}},
                       .dtype = dtype};
      kernels::cuda::pointwise(select, context.queue());
      context.synchronize();
      call.in[0] = a.host(), call.in[1] = b.host(), call.out = wanted.data();
      kernels::cpu::pointwise(call);
      select.in[0] = wanted.data(), select.in[1] = a.host(), select.out = chosen.host();
      kernels::cpu::pointwise(select);
      const std::vector<std::byte> got = mask.read();
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(static_cast<std::uint8_t>(got[i]), wanted[i])
            << pointwise_names[number] << " " << i;
      }
      const std::vector<double> on_device = chosen.device_values(), on_host = chosen.host_values();
      for (std::size_t i = 0; i < on_host.size(); ++i) {
        ASSERT_TRUE(on_device[i] == on_host[i] ||
                    (std::isnan(on_device[i]) && std::isnan(on_host[i])))
            << i;
      }
    }
  }
}

TEST(CudaPointwise, IntegersAndLogic) {
  const std::vector<std::int64_t> ids = {(std::int64_t{1} << 60) + 1, 5, -3};
  std::vector<std::byte> bytes(ids.size() * sizeof(std::int64_t));
  std::memcpy(bytes.data(), ids.data(), bytes.size());
  const DeviceMemory memory(bytes), mask(3), inverse(3);
  TestContext context;
  kernels::cuda::pointwise({.op = PointwiseOp::equal,
                            .in = {memory.data(), memory.data()},
                            .out = mask.data(),
                            .shape = {1, {3}, {{1}, {0}}},
                            .dtype = int64},
                           context.queue());
  kernels::cuda::pointwise({.op = PointwiseOp::logical_not,
                            .in = {mask.data()},
                            .out = inverse.data(),
                            .shape = {1, {3}, {{1}}},
                            .dtype = boolean},
                           context.queue());
  context.synchronize();
  EXPECT_EQ(mask.read(), (std::vector<std::byte>{std::byte{1}, std::byte{0}, std::byte{0}}));
  EXPECT_EQ(inverse.read(), (std::vector<std::byte>{std::byte{0}, std::byte{1}, std::byte{1}}));
  EXPECT_THROW(kernels::cuda::pointwise({.op = PointwiseOp::add,
                                         .in = {memory.data()},
                                         .out = mask.data(),
                                         .shape = {},
                                         .dtype = int64},
                                        context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

// Row-wise softmax on the GPU, compared with the CPU's fp64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

using kernels::SoftmaxBackward;
using kernels::SoftmaxForward;

struct Case {
  std::int64_t rows, dim;
  std::size_t offset = 0, out_offset = 0;
};
// A warp, 128 and 512 threads per row; rows on and off vector boundaries, separately and together.
const std::vector<Case> softmax_cases = {{4, 1},        {3, 31},         {3, 64}, {3, 77, 1, 1},
                                         {3, 77, 1, 2}, {2, 1021, 0, 0}, {0, 5},  {1, 9001, 3, 3}};

void check(const Case& c, DType dtype) {
  SCOPED_TRACE(fmt::format("{} x {} {}", c.rows, c.dim, name_of(dtype)));
  const auto n = static_cast<std::size_t>(c.rows * c.dim);
  ComparedArray x(random_values(n, dtype, 1, 3), dtype, c.offset);
  ComparedArray out(c.rows * c.dim, dtype, c.out_offset);
  TestContext context;
  run_on_all_sides<SoftmaxForward>(context, kernels::cuda::softmax_forward,
                                   kernels::cpu::softmax_forward, dtype,
                                   [&](Side side, DType type) -> SoftmaxForward {
                                     return {x.at(side), out.at(side), c.rows, c.dim, type};
                                   });
  out.expect_within_bound("softmax_forward", "out");

  ComparedArray y(out.low_values(), dtype, c.offset);
  ComparedArray dout(random_values(n, dtype, 2), dtype, c.offset);
  ComparedArray dx(c.rows * c.dim, dtype, c.out_offset);
  run_on_all_sides<SoftmaxBackward>(
      context, kernels::cuda::softmax_backward, kernels::cpu::softmax_backward, dtype,
      [&](Side side, DType type) -> SoftmaxBackward {
        return {dout.at(side), y.at(side), dx.at(side), c.rows, c.dim, type};
      });
  dx.expect_within_bound("softmax_backward", "dx");
}

TEST(CudaSoftmax, MatchesFp64) {
  for (const Case& c : softmax_cases) {
    for (const DType dtype : floating_dtypes) check(c, dtype);
  }
}

TEST(CudaSoftmax, PlaceChangesNoBit) {
  constexpr std::int64_t rows = 2, dim = 300;
  for (const DType dtype : floating_dtypes) {
    const std::vector<double> values = random_values(rows * dim, dtype, 3, 3);
    const std::vector<double> gradients = random_values(rows * dim, dtype, 4);
    const auto run = [&](std::size_t offset, bool in_place) {
      MirroredArray x(values, dtype, offset), dout(gradients, dtype, offset);
      MirroredArray y(values, dtype, offset), dx(values, dtype, offset);
      MirroredArray& out = in_place ? x : y;
      MirroredArray& gradient = in_place ? dout : dx;
      TestContext context;
      kernels::cuda::softmax_forward({x.device(), out.device(), rows, dim, dtype}, context.queue());
      kernels::cuda::softmax_backward(
          {dout.device(), out.device(), gradient.device(), rows, dim, dtype}, context.queue());
      return std::vector{out.device_bytes(), gradient.device_bytes()};
    };
    const auto expected = run(0, false);
    EXPECT_TRUE(run(0, true) == expected) << name_of(dtype);
    for (const std::size_t offset : {1u, 2u, 3u, 5u, 7u}) {
      EXPECT_TRUE(run(offset, false) == expected) << name_of(dtype) << " " << offset;
    }
  }
}

TEST(CudaSoftmax, MaskedAndExtremeValues) {
  const double infinity = std::numeric_limits<double>::infinity();
  // Whole groups of -inf, and numbers that overflow without a shift.
  std::vector<double> values(2000, -infinity);
  values[1500] = values[1501] = 1000;
  for (const DType dtype : floating_dtypes) {
    const DeviceMemory x(values, dtype), out(x.bytes());
    TestContext context;
    kernels::cuda::softmax_forward({x.data(), out.data(), 1, 2000, dtype}, context.queue());
    context.synchronize();
    const std::vector<double> result = out.read(dtype);
    EXPECT_EQ(result[0], 0);
    EXPECT_EQ(result[1500], 0.5);
    EXPECT_EQ(result[1501], 0.5);
    std::vector<double> bad = values;
    bad[7] = std::numeric_limits<double>::quiet_NaN();
    const DeviceMemory with_nan(bad, dtype);
    kernels::cuda::softmax_forward({with_nan.data(), out.data(), 1, 2000, dtype}, context.queue());
    context.synchronize();
    EXPECT_TRUE(std::isnan(out.read(dtype)[1500]));
  }
}

}  // namespace
}  // namespace tessera::testing

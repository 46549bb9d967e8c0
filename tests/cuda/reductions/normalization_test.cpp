// LayerNorm and RMSNorm on the GPU, forward and backward, compared with the CPU's fp64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

using kernels::NormBackward;
using kernels::NormForward;

struct NormCase {
  std::int64_t rows, dim;
  bool rms, residual, gamma, beta;
  std::size_t offset = 0;
};

// One warp per row, 128 and 512 threads, more than the registers hold; whole groups and tails; off
// vector boundaries.
const std::vector<NormCase> norm_cases = {
    {3, 64, false, true, true, true},      {3, 64, true, true, true, false},
    {2, 77, false, false, true, false, 1}, {2, 77, true, false, false, false, 1},
    {2, 520, false, false, false, true},   {1, 1100, true, true, true, false},
    {1, 4100, false, true, true, true},    {1, 8210, false, true, true, true, 1},
    {40, 24, false, false, true, true},    {1, 1, false, false, true, true},
    {0, 64, false, true, true, true},
};

std::size_t count(std::int64_t rows, std::int64_t dim) {
  return static_cast<std::size_t>(rows * dim);
}

void* at_if(bool given, ComparedArray& array, Side side) {
  return given ? array.at(side) : nullptr;
}

void check_forward(const NormCase& c, DType dtype) {
  SCOPED_TRACE(fmt::format("{} x {} {}", c.rows, c.dim, name_of(dtype)));
  const std::size_t n = count(c.rows, c.dim);
  ComparedArray x(random_values(n, dtype, 1), dtype, c.offset);
  ComparedArray residual(random_values(n, dtype, 2), dtype, c.offset);
  ComparedArray gamma(random_values(count(1, c.dim), dtype, 3), dtype, c.offset);
  ComparedArray beta(random_values(count(1, c.dim), dtype, 4), dtype, c.offset);
  ComparedArray sum(c.rows * c.dim, dtype, c.offset), out(c.rows * c.dim, dtype, c.offset);
  ComparedArray mean(c.rows, statistic_of(dtype)), rstd(c.rows, statistic_of(dtype));
  TestContext context;
  run_on_all_sides<NormForward>(context, kernels::cuda::norm_forward, kernels::cpu::norm_forward,
                                dtype, [&](Side side, DType type) -> NormForward {
                                  return {x.at(side),
                                          at_if(c.residual, residual, side),
                                          at_if(c.gamma, gamma, side),
                                          at_if(c.beta, beta, side),
                                          at_if(c.residual, sum, side),
                                          out.at(side),
                                          at_if(!c.rms, mean, side),
                                          rstd.at(side),
                                          c.rows,
                                          c.dim,
                                          1e-5f,
                                          c.rms,
                                          type};
                                });
  const std::string kernel = c.rms ? "rms_norm" : "layer_norm";
  out.expect_within_bound(kernel, "out");
  rstd.expect_within_bound(kernel, "rstd");
  if (!c.rms) mean.expect_within_bound(kernel, "mean");
  if (c.residual) sum.expect_same(kernel, "sum");
}

TEST(CudaNormalization, Forward) {
  for (const NormCase& c : norm_cases) {
    for (const DType dtype : floating_dtypes) check_forward(c, dtype);
  }
}

// x, its mean and rstd, from a forward pass.
struct Input {
  std::vector<double> x, mean, rstd;
};
Input normalized_input(const NormCase& c, DType dtype) {
  Input input{random_values(count(c.rows, c.dim), dtype, 5), std::vector<double>(count(c.rows, 1)),
              std::vector<double>(count(c.rows, 1))};
  std::vector<double> out(input.x.size());
  kernels::cpu::norm_forward({input.x.data(), nullptr, nullptr, nullptr, nullptr, out.data(),
                              c.rms ? nullptr : input.mean.data(), input.rstd.data(), c.rows, c.dim,
                              1e-5f, c.rms, float64});
  return input;
}

void check_backward(const NormCase& c, DType dtype, bool accumulate) {
  SCOPED_TRACE(fmt::format("{} x {} {}", c.rows, c.dim, name_of(dtype)));
  const std::size_t n = count(c.rows, c.dim);
  const Input input = normalized_input(c, dtype);
  ComparedArray x(input.x, dtype, c.offset);
  ComparedArray mean(input.mean, statistic_of(dtype)), rstd(input.rstd, statistic_of(dtype));
  ComparedArray dout(random_values(n, dtype, 6), dtype, c.offset);
  ComparedArray dresidual(random_values(n, dtype, 7), dtype, c.offset);
  ComparedArray gamma(random_values(count(1, c.dim), dtype, 8), dtype, c.offset);
  ComparedArray dx(c.rows * c.dim, dtype, c.offset);
  ComparedArray dgamma(random_values(count(1, c.dim), dtype, 9), dtype, c.offset);
  ComparedArray dbeta(random_values(count(1, c.dim), dtype, 10), dtype, c.offset);
  TestContext context;
  run_on_all_sides<NormBackward>(context, kernels::cuda::norm_backward, kernels::cpu::norm_backward,
                                 dtype, [&](Side side, DType type) -> NormBackward {
                                   return {dout.at(side),
                                           at_if(c.residual, dresidual, side),
                                           x.at(side),
                                           at_if(c.gamma, gamma, side),
                                           at_if(!c.rms, mean, side),
                                           rstd.at(side),
                                           dx.at(side),
                                           at_if(c.gamma, dgamma, side),
                                           at_if(c.beta, dbeta, side),
                                           accumulate,
                                           accumulate,
                                           c.rows,
                                           c.dim,
                                           c.rms,
                                           type};
                                 });
  const std::string kernel = c.rms ? "rms_norm_backward" : "layer_norm_backward";
  if (c.dim > 1 || c.rms) {
    dx.expect_within_bound(kernel, "dx");
  } else {
    // A row of one element: 0, except for the rounding of dout * gamma, which a GPU may leave out
    // in one of the two terms of the difference.
    const double unit = dtype == float64 ? 0x1p-53 : 0x1p-24;
    const double largest = std::abs(input.rstd[0]) * 16;  // |dout * gamma| is below 16
    for (const double value : dx.device_values()) EXPECT_LE(std::abs(value), largest * unit);
  }
  if (c.gamma) dgamma.expect_within_bound(kernel, "dgamma");
  if (c.beta) dbeta.expect_within_bound(kernel, "dbeta");
}

TEST(CudaNormalization, Backward) {
  for (const NormCase& c : norm_cases) {
    for (const DType dtype : floating_dtypes) check_backward(c, dtype, c.rows % 2 == 0);
  }
}

// Many chunks of rows, and chunks of more than 32 rows.
TEST(CudaNormalization, BackwardOfManyRows) {
  check_backward({300, 8, false, false, true, true}, float32, true);
  check_backward({300, 8, true, false, true, false}, bfloat16, false);
}

// dx overwrites dout or dresidual, and the same rows are off vector boundaries: the bits do not
// change.
TEST(CudaNormalization, PlaceChangesNoBit) {
  for (const DType dtype : floating_dtypes) {
    const NormCase c{3, 80, false, true, true, true};
    const Input input = normalized_input(c, dtype);
    const std::size_t n = count(c.rows, c.dim);
    const DeviceMemory mean(input.mean, statistic_of(dtype)), rstd(input.rstd, statistic_of(dtype));
    const auto run = [&](std::size_t offset, int over) {
      MirroredArray x(input.x, dtype, offset), dout(random_values(n, dtype, 6), dtype, offset);
      MirroredArray dresidual(random_values(n, dtype, 7), dtype, offset);
      MirroredArray gamma(random_values(80, dtype, 8), dtype, offset);
      MirroredArray dx(std::vector<double>(n), dtype, offset);
      MirroredArray dgamma(std::vector<double>(80), dtype, offset);
      MirroredArray dbeta(std::vector<double>(80), dtype, offset);
      MirroredArray& result = over == 0 ? dx : over == 1 ? dout : dresidual;
      TestContext context;
      kernels::cuda::norm_backward({dout.device(), dresidual.device(), x.device(), gamma.device(),
                                    mean.data(), rstd.data(), result.device(), dgamma.device(),
                                    dbeta.device(), false, false, c.rows, c.dim, false, dtype},
                                   context.queue());
      return std::vector{result.device_bytes(), dgamma.device_bytes(), dbeta.device_bytes()};
    };
    const auto expected = run(0, 0);
    EXPECT_TRUE(run(0, 1) == expected);
    EXPECT_TRUE(run(0, 2) == expected);
    EXPECT_TRUE(run(1, 0) == expected);
  }
}

TEST(CudaNormalization, RefusesMismatchedArguments) {
  TestContext context;
  const DeviceMemory memory(64);
  void* p = memory.data();
  EXPECT_THROW(
      kernels::cuda::norm_forward(
          {p, nullptr, p, p, nullptr, p, nullptr, p, 1, 4, 0, true, float32}, context.queue()),
      std::logic_error);
  EXPECT_THROW(kernels::cuda::norm_forward(
                   {p, p, p, nullptr, nullptr, p, p, p, 1, 4, 0, false, float32}, context.queue()),
               std::logic_error);
  EXPECT_THROW(
      kernels::cuda::norm_forward({p, nullptr, p, nullptr, nullptr, p, p, p, 1, 4, 0, false, int32},
                                  context.queue()),
      std::logic_error);
  EXPECT_THROW(
      kernels::cuda::norm_backward(
          {p, nullptr, p, p, p, p, p, p, p, false, false, 1, 4, true, float32}, context.queue()),
      std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

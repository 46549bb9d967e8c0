// Sums over rows and over all elements on the GPU, compared with the CPU's fp64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

using kernels::SumAll;
using kernels::SumRows;

void check_rows(std::int64_t rows, std::int64_t inner, DType dtype, bool accumulate,
                std::size_t offset = 0) {
  SCOPED_TRACE(fmt::format("{} x {} {}", rows, inner, name_of(dtype)));
  ComparedArray x(random_values(static_cast<std::size_t>(rows * inner), dtype, 1), dtype, offset);
  ComparedArray out(random_values(static_cast<std::size_t>(inner), dtype, 2), dtype, offset);
  TestContext context;
  run_on_all_sides<SumRows>(context, kernels::cuda::sum_rows, kernels::cpu::sum_rows, dtype,
                            [&](Side side, DType type) -> SumRows {
                              return {x.at(side), out.at(side), rows, inner, type, accumulate};
                            });
  out.expect_within_bound("sum_rows", "out");
}

// Rows that are folded and rows that are not, one chunk and many, whole groups and tails.
TEST(CudaSums, SumRows) {
  for (const DType dtype : floating_dtypes) {
    check_rows(3, 128, dtype, false);
    check_rows(70, 259, dtype, true, 1);
    check_rows(1, 1, dtype, true);
    check_rows(1000, 1, dtype, false, 1);
    check_rows(77, 5, dtype, true);
    check_rows(0, 130, dtype, true);
    check_rows(0, 3, dtype, false);
    check_rows(4, 0, dtype, false);
  }
  check_rows(9000, 130, bfloat16, false);  // chunks of more than 32 rows
}

void check_all(std::int64_t n, DType dtype, std::size_t offset) {
  SCOPED_TRACE(fmt::format("{} {}", n, name_of(dtype)));
  ComparedArray x(random_values(static_cast<std::size_t>(n), dtype, 3), dtype, offset);
  ComparedArray out(1, dtype);
  TestContext context;
  run_on_all_sides<SumAll>(context, kernels::cuda::sum_all, kernels::cpu::sum_all, dtype,
                           [&](Side side, DType type) -> SumAll {
                             return {x.at(side), out.at(side), n, type, 1.0 / 3};
                           });
  out.expect_within_bound("sum_all", "out");
}

TEST(CudaSums, SumAll) {
  for (const DType dtype : floating_dtypes) {
    for (const std::int64_t n : {0, 1, 100, 4096, 9001}) check_all(n, dtype, 0);
    check_all(5000, dtype, 1);
  }
}

// The sum is rounded once: 1 + 2^-8 + 2^-40 is above the middle between two bfloat16 numbers.
// Rounded to fp32 first, it would be the middle, which rounds to the even number.
TEST(CudaSums, SumAllRoundsOnce) {
  const DeviceMemory x({1.0}, bfloat16), out(2);
  TestContext context;
  kernels::cuda::sum_all({x.data(), out.data(), 1, bfloat16, 1.0 + 0x1p-8 + 0x1p-40},
                         context.queue());
  context.synchronize();
  EXPECT_EQ(out.read(bfloat16)[0], 1.0 + 0x1p-7);
}

TEST(CudaSums, PlaceChangesNoBit) {
  for (const DType dtype : floating_dtypes) {
    const auto run = [&](std::size_t offset) {
      MirroredArray x(random_values(70 * 140, dtype, 4), dtype, offset);
      const DeviceMemory rows(140 * size_of(dtype)), all(size_of(dtype));
      TestContext context;
      kernels::cuda::sum_rows({x.device(), rows.data(), 70, 140, dtype}, context.queue());
      kernels::cuda::sum_all({x.device(), all.data(), 70 * 140, dtype}, context.queue());
      context.synchronize();
      return std::vector{rows.read(), all.read()};
    };
    const auto expected = run(0);
    for (const std::size_t offset : {1u, 2u, 3u, 7u}) EXPECT_TRUE(run(offset) == expected);
  }
}

TEST(CudaSums, RefuseOtherDtypes) {
  TestContext context;
  const DeviceMemory memory(64);
  EXPECT_THROW(
      kernels::cuda::sum_rows({memory.data(), memory.data(), 1, 4, int32}, context.queue()),
      std::logic_error);
  EXPECT_THROW(kernels::cuda::sum_all({memory.data(), memory.data(), 4, int32}, context.queue()),
               std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

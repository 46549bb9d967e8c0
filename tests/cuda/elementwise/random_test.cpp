// Uniform and normal draws: the CPU's bits, wherever a tensor is cut.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

using kernels::Distribution;

constexpr kernels::RandomKey random_key{.seed = 0x123456789abcdef0, .stream = 0xfedcba9876543210};

void check(DType dtype, Distribution distribution, std::int64_t first, std::size_t n,
           std::size_t offset) {
  MirroredArray out(std::vector<double>(n, 9), dtype, offset);
  const auto count = static_cast<std::int64_t>(n);
  TestContext context;
  kernels::cuda::random_fill(
      {out.device(), count, first, dtype, random_key, distribution, -0.3, 1.7}, context.queue());
  kernels::cpu::random_fill({out.host(), count, first, dtype, random_key, distribution, -0.3, 1.7});
  out.expect_same("random_fill", distribution == Distribution::uniform ? "uniform" : "normal");
}

void check_all(Distribution distribution) {
  const std::int64_t far = (std::int64_t{1} << 34) - 6;  // beyond 32 bits of the block's counter
  for (const DType dtype : floating_dtypes) {
    for (const std::size_t n : array_lengths) {
      check(dtype, distribution, 0, n, 0);
      check(dtype, distribution, 5, n, 1);
    }
    check(dtype, distribution, 3, 75, 3);
    check(dtype, distribution, 2, 75, 1);
    check(dtype, distribution, far, 75, 0);
    check(dtype, distribution, 0, 2503, 0);
  }
}

TEST(CudaRandomFill, Uniform) {
  check_all(Distribution::uniform);
}

TEST(CudaRandomFill, Normal) {
  check_all(Distribution::normal);
}

TEST(CudaRandomFill, CutsChangeNoBit) {
  constexpr std::int64_t n = 203;
  for (const auto distribution : {Distribution::uniform, Distribution::normal}) {
    const DeviceMemory whole(n * sizeof(float)), parts(n * sizeof(float));
    TestContext context;
    kernels::cuda::random_fill({whole.data(), n, 9, float32, random_key, distribution, 0, 1},
                               context.queue());
    std::int64_t first = 0;
    for (const std::int64_t count : {1, 101, 14, 87}) {
      kernels::cuda::random_fill(
          {parts.as<float>() + first, count, 9 + first, float32, random_key, distribution, 0, 1},
          context.queue());
      first += count;
    }
    EXPECT_TRUE(parts.read() == whole.read());
  }
}

TEST(CudaRandomFill, RefusesWhatTheCpuRefuses) {
  const DeviceMemory out(16);
  TestContext context;
  EXPECT_THROW(
      kernels::cuda::random_fill({out.data(), 4, 0, int32, random_key, Distribution::uniform, 0, 1},
                                 context.queue()),
      std::logic_error);
  EXPECT_THROW(
      kernels::cuda::random_fill(
          {out.data(), 4, -1, float32, random_key, Distribution::uniform, 0, 1}, context.queue()),
      std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

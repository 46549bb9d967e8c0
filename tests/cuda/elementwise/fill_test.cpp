// Fill: the CPU's bits for every dtype, length and alignment.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/mirrored_array.h"

namespace tessera::testing {
namespace {

void check(DType dtype, double value) {
  for (const std::size_t n : array_lengths) {
    for (const std::size_t offset : array_offsets) {
      MirroredArray out(std::vector<double>(n, 1.0), dtype, offset);
      const auto count = static_cast<std::int64_t>(n);
      TestContext context;
      kernels::cuda::fill({out.device(), count, dtype, value}, context.queue());
      kernels::cpu::fill({out.host(), count, dtype, value});
      out.expect_same("fill", "out");
    }
  }
}

TEST(CudaFill, FloatingDtypes) {
  // The last three are near ties of bfloat16 and float16, which rounding to float first would get
  // wrong.
  for (const double value : {0.0, -0.0, -1.5, 1e-7, 1e30, std::numeric_limits<double>::infinity(),
                             1 + 0x1p-8, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40}) {
    for (const DType dtype : floating_dtypes) check(dtype, value);
  }
}

TEST(CudaFill, Integers) {
  for (const DType dtype : {int32, int64}) {
    check(dtype, -7);
    check(dtype, 2147483647);
  }
  check(int64, 1099511627777);
  check(uint8, 200);
  check(boolean, 0);
  check(boolean, 2);
}

}  // namespace
}  // namespace tessera::testing

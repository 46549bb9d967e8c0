// Products of a few rows with a matrix, compared with the CPU's within the bound of low precision.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

#include "cuda/compared_array.h"

namespace tessera::testing {
namespace {

struct GemvCase {
  std::int64_t rows, n, k;
  bool bias = true;
};
constexpr GemvCase gemv_cases[] = {{1, 96, 64},         {3, 70, 33}, {1, 1, 200}, {2, 5, 1},
                                   {1, 33, 100, false}, {0, 4, 4},   {1, 0, 4},   {2, 9, 0}};

void check(const GemvCase& s, bool transposed, DType dtype, std::size_t offset) {
  const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  ComparedArray x(random_values(count(s.rows * s.k), dtype, 1), dtype, offset);
  ComparedArray w(random_values(count(s.n * s.k), dtype, 2), dtype, offset);
  ComparedArray bias(random_values(count(s.n), dtype, 3), dtype, offset);
  ComparedArray out(s.rows * s.n, dtype, offset);
  TestContext context;
  run_on_all_sides<kernels::Gemv>(context, kernels::cuda::gemv, kernels::cpu::gemv, dtype,
                                  [&](Side side, DType type) {
                                    return kernels::Gemv{.x = x.at(side),
                                                         .w = w.at(side),
                                                         .bias = s.bias ? bias.at(side) : nullptr,
                                                         .out = out.at(side),
                                                         .rows = s.rows,
                                                         .n = s.n,
                                                         .k = s.k,
                                                         .transposed = transposed,
                                                         .dtype = type};
                                  });
  context.synchronize();
  out.expect_within_bound("gemv", transposed ? "of rows" : "of columns");
}

TEST(CudaGemv, EveryShape) {
  for (const GemvCase& shape : gemv_cases) {
    for (const DType dtype : floating_dtypes) {
      check(shape, true, dtype, 0);
      check(shape, false, dtype, 0);
    }
  }
  check({3, 70, 33}, true, bfloat16, 1);
  check({3, 70, 33}, false, bfloat16, 1);
}

TEST(CudaGemv, RefusesWhatTheCpuRefuses) {
  TestContext context;
  kernels::Gemv wrong{};
  wrong.dtype = int32;
  EXPECT_THROW(kernels::cuda::gemv(wrong, context.queue()), std::logic_error);
  wrong.dtype = float32;
  wrong.rows = -1;
  EXPECT_THROW(kernels::cuda::gemv(wrong, context.queue()), std::logic_error);
}

}  // namespace
}  // namespace tessera::testing

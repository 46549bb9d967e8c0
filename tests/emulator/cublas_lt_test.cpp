// The matmul that calls cuBLASLt, with the emulated one, compared with the CPU's in fp64.
#include "emulator/cublas/cublas_lt.h"

#include <cmath>

#include "cuda/kernel_testing.h"
#include "emulator/runtime/checker.h"
#include "kernels/cuda/matmul/matmul_cublas.h"

namespace tessera::testing {
namespace {

namespace cuda = kernels::cuda;

struct Case {
  DType dtype, out_dtype;
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  std::int64_t batch = 1;
};

// Row-major, in fp64.
std::vector<double> expected_product(const Case& c, const std::vector<double>& a,
                                     const std::vector<double>& b,
                                     const std::vector<double>& before,
                                     const std::vector<double>& bias, double alpha) {
  std::vector<double> result(before.size());
  for (std::int64_t p = 0; p < c.batch; ++p) {
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < c.k; ++l) {
          const double left = a[p * c.m * c.k + (c.transpose_a ? l * c.m + i : i * c.k + l)];
          const double right = b[p * c.k * c.n + (c.transpose_b ? j * c.k + l : l * c.n + j)];
          sum += left * right;
        }
        const std::int64_t at = p * c.m * c.n + i * c.n + j;
        result[at] = alpha * sum + (c.accumulate ? before[at] : 0) + (c.bias ? bias[j] : 0);
      }
    }
  }
  return result;
}

double tolerance_of(DType dtype) {
  return dtype == bfloat16 ? 8e-3 : dtype == float16 ? 1e-3 : dtype == float32 ? 1e-5 : 1e-13;
}

class CublasLtProduct : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Forms, CublasLtProduct,
    ::testing::Values(Case{float32, float32, 8, 12, 20},
                      Case{float32, float32, 8, 12, 20, true, false, true},
                      Case{bfloat16, bfloat16, 16, 24, 32, false, true, false, true},
                      Case{bfloat16, float32, 16, 24, 32, true, true},
                      Case{float16, float16, 8, 16, 24, false, false, true, true},
                      Case{float64, float64, 4, 6, 10, true, true, true},
                      Case{float32, float32, 8, 12, 20, false, true, false, false, 3}));

TEST_P(CublasLtProduct, EqualsTheCpus) {
  const Case& c = GetParam();
  const float alpha = 0.5f;
  const auto a = random_values(c.batch * c.m * c.k, c.dtype, 1);
  const auto b = random_values(c.batch * c.k * c.n, c.dtype, 2);
  const auto before = random_values(c.batch * c.m * c.n, c.out_dtype, 3);
  const auto bias = random_values(c.n, c.dtype, 4);
  const DeviceMemory device_a(a, c.dtype);
  const DeviceMemory device_b(b, c.dtype);
  const DeviceMemory device_c(before, c.out_dtype);
  const DeviceMemory device_bias(bias, c.dtype);
  TestContext context;
  const kernels::Matmul product{.a = device_a.data(),
                                .b = device_b.data(),
                                .c = device_c.data(),
                                .m = c.m,
                                .n = c.n,
                                .k = c.k,
                                .lda = c.transpose_a ? c.m : c.k,
                                .ldb = c.transpose_b ? c.k : c.n,
                                .ldc = c.n,
                                .transpose_a = c.transpose_a,
                                .transpose_b = c.transpose_b,
                                .accumulate = c.accumulate,
                                .alpha = alpha,
                                .bias = c.bias ? device_bias.data() : nullptr,
                                .dtype = c.dtype,
                                .out_dtype = c.out_dtype,
                                .batch = c.batch,
                                .stride_a = c.m * c.k,
                                .stride_b = c.k * c.n,
                                .stride_c = c.m * c.n};
  const cuda::CublasLtReplacement library(emulator::cublas_lt());
  ASSERT_TRUE(cuda::matmul_cublas(product, context, cuda::cublas_lt_library()));
  const std::vector<double> result = device_c.read(c.out_dtype);
  const auto expected = expected_product(c, a, b, before, bias, alpha);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double bound = tolerance_of(c.out_dtype) * (std::abs(expected[i]) + std::sqrt(c.k));
    ASSERT_NEAR(result[i], expected[i], bound) << "element " << i;
  }
}

// The product is work of its stream, and its accesses are declared: a write to its operand by
// another stream that does not wait is reported.
TEST(CublasLt, ProductsAreOperationsOfTheirStream) {
  namespace checker = emulator::checker;
  const bool was_enabled = checker::enabled();
  checker::set_enabled(true);
  checker::reset();
  const std::vector<double> zeroes(16 * 16, 0.0);
  const DeviceMemory a(zeroes, float32);
  const DeviceMemory b(zeroes, float32);
  const DeviceMemory c(zeroes, float32);
  TestContext context;
  const kernels::Matmul product{.a = a.data(),
                                .b = b.data(),
                                .c = c.data(),
                                .m = 16,
                                .n = 16,
                                .k = 16,
                                .lda = 16,
                                .ldb = 16,
                                .ldc = 16};
  const cuda::CublasLtReplacement library(emulator::cublas_lt());
  ASSERT_TRUE(cuda::matmul_cublas(product, context, cuda::cublas_lt_library()));
  EXPECT_EQ(checker::conflicts(), 0);
  TESSERA_CUDA(cudaMemset(b.data(), 0, 4));  // on the default stream
  EXPECT_EQ(checker::conflicts(), 1);
  TESSERA_CUDA(cudaDeviceSynchronize());
  checker::reset();
  checker::set_enabled(was_enabled);
}

}  // namespace
}  // namespace tessera::testing

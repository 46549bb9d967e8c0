// Matrix products through cuBLASLt, with the functions of matmul_library_testing.h, without a real
// or an emulated device.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cuda/kernel_testing.h"
#include "cuda/matmul/matmul_library_testing.h"
#include "kernels/cuda/matmul/matmul_cublas.h"
#include "kernels/cuda/matmul/matmul_way.h"

namespace tessera::testing {
namespace {

using cublas::record;
using cublas::stand_in;
using kernels::Matmul;
using kernels::cuda::CublasLt;
using kernels::cuda::CublasLtLibrary;
using kernels::cuda::MatmulWay;

// A queue without launches: its memory is on the host.
class HostContext final : public kernels::cuda::Context {
 public:
  void* scratch(std::size_t bytes) override {
    memory_.resize(bytes);
    return memory_.data();
  }

 private:
  std::vector<std::byte> memory_;
};

// The arguments of a product and their memory on the host, where vectors are aligned to 16 bytes.
struct Product {
  Matmul arguments{};
  std::vector<std::byte> a, b, c, bias;

  Product(DType dtype, DType out_dtype, std::int64_t m, std::int64_t n, std::int64_t k,
          bool transpose_a = false, bool transpose_b = false, std::int64_t batch = 1) {
    const auto array = [](std::int64_t count, DType type, unsigned seed) {
      return encode(random_values(static_cast<std::size_t>(count), type, seed), type);
    };
    a = array(batch * m * k, dtype, 1);
    b = array(batch * k * n, dtype, 2);
    c = array(batch * m * n, out_dtype, 3);
    bias = array(n, dtype, 4);
    Matmul& p = arguments;
    p.a = a.data();
    p.b = b.data();
    p.c = c.data();
    p.m = m;
    p.n = n;
    p.k = k;
    p.lda = transpose_a ? m : k;
    p.ldb = transpose_b ? k : n;
    p.ldc = n;
    p.transpose_a = transpose_a;
    p.transpose_b = transpose_b;
    p.dtype = dtype;
    p.out_dtype = out_dtype;
    p.batch = batch;
    p.stride_a = m * k;
    p.stride_b = k * n;
    p.stride_c = m * n;
  }
};

class CudaMatmulLibrary : public ::testing::Test {
 protected:
  CudaMatmulLibrary() { record = cublas::Record{}; }

  bool run(const Matmul& product) {
    return kernels::cuda::matmul_cublas(product, context_, library_);
  }

  // Compares with the CPU's kernel on the same arguments.
  void expect_multiplied(Product product) {
    Product expected = product;
    expected.arguments.a = expected.a.data();
    expected.arguments.b = expected.b.data();
    expected.arguments.c = expected.c.data();
    if (product.arguments.bias != nullptr) expected.arguments.bias = expected.bias.data();
    kernels::cpu::matmul(expected.arguments);
    product.arguments.a = product.a.data();
    product.arguments.b = product.b.data();
    product.arguments.c = product.c.data();
    if (product.arguments.bias != nullptr) product.arguments.bias = product.bias.data();
    ASSERT_TRUE(run(product.arguments));
    const DType dtype = product.arguments.out_dtype;
    const auto values = decode(product.c, dtype), wanted = decode(expected.c, dtype);
    const double tolerance = product.arguments.out_dtype == float32   ? 1e-5
                             : product.arguments.out_dtype == float64 ? 1e-12
                             : product.arguments.out_dtype == float16 ? 1e-2
                                                                      : 1e-1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], wanted[i], tolerance) << "element " << i;
    }
  }

  HostContext context_;
  const CublasLtLibrary library_{std::make_shared<const CublasLt>(stand_in()), {}};
};

TEST_F(CudaMatmulLibrary, DescribesRowMajorProductsOfEveryKind) {
  for (const DType dtype : floating_dtypes) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const std::int64_t batch : {1, 3}) {
          Product product(dtype, dtype, 8, 12, 16, transpose_a, transpose_b, batch);
          product.arguments.alpha = 0.5f;
          product.arguments.accumulate = batch == 3;
          if (dtype != float64) product.arguments.bias = product.bias.data();
          expect_multiplied(product);
          EXPECT_EQ(record.compute, dtype == float64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F);
        }
      }
    }
  }
  expect_multiplied(Product(bfloat16, float32, 8, 12, 16));
}

TEST_F(CudaMatmulLibrary, ChecksOncePerShapeAndChoosesOncePerRowShape) {
  Product product(bfloat16, bfloat16, 64, 16, 8);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.choices, 1);
  EXPECT_EQ(record.checks, 1);
  EXPECT_EQ(record.products, 3);
  // Another number of rows uses the existing algorithm.
  product.arguments.m = 5;
  EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.choices, 1);
  EXPECT_EQ(record.checks, 2);
  // Another row length needs another algorithm.
  product.arguments.n = product.arguments.ldb = product.arguments.ldc = 8;
  EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.choices, 2);
  ASSERT_EQ(record.rows_of_choices.size(), 2u);
  EXPECT_EQ(record.rows_of_choices[0], record.rows_of_choices[1]);
  EXPECT_EQ(record.created_handles, 1);
  // A description includes that there is a bias, but not which one.
  product.arguments.bias = product.bias.data();
  EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.bias, product.bias.data());
  Product other(bfloat16, bfloat16, 5, 8, 8);
  product.arguments.bias = other.bias.data();
  EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.bias, other.bias.data());
  EXPECT_EQ(record.choices, 3);
}

// All bits of a weight's gradient follow from its shape, so its algorithm may, and k may be split.
TEST_F(CudaMatmulLibrary, ChoosesForTheShapeOfAWeightGradient) {
  Product product(bfloat16, bfloat16, 64, 16, 8, true);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.choices, 1);
  EXPECT_EQ(record.rows_of_choices.back(), 64);
  EXPECT_EQ(record.preference.at(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
            static_cast<std::uint64_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  product.arguments.m = 32;
  EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.choices, 2);
  EXPECT_EQ(record.rows_of_choices.back(), 32);
}

TEST_F(CudaMatmulLibrary, NeverSplitsTheSumsOfRows) {
  const Product product(float16, float16, 8, 8, 8);
  EXPECT_TRUE(run(product.arguments));
  EXPECT_EQ(record.preference.at(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
            static_cast<std::uint64_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  EXPECT_EQ(record.preference.at(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES), 16u);
}

TEST_F(CudaMatmulLibrary, TakesItsWorkspaceFromTheQueue) {
  record.workspace_bytes = 4096;
  const Product product(float16, float16, 8, 8, 8);
  EXPECT_TRUE(run(product.arguments));
  EXPECT_NE(record.workspace, nullptr);
}

TEST_F(CudaMatmulLibrary, LeavesUnsupportedProductsToTheOwnKernels) {
  const auto expect_left = [this](const char* why, auto&& change) {
    Product product(bfloat16, bfloat16, 8, 8, 8);
    product.arguments.bias = product.bias.data();
    change(product.arguments);
    EXPECT_FALSE(run(product.arguments)) << why;
  };
  expect_left("k is 0", [](Matmul& p) { p.k = 0; });
  expect_left("a does not begin on 16 bytes",
              [](Matmul& p) { p.a = static_cast<const std::byte*>(p.a) + 2; });
  expect_left("bias does not begin on 16 bytes",
              [](Matmul& p) { p.bias = static_cast<const std::byte*>(p.bias) + 2; });
  expect_left("nor do the products of a batch", [](Matmul& p) {
    p.batch = 2;
    p.stride_c = 63;
  });
  expect_left("the bias is not of the result's type", [](Matmul& p) { p.out_dtype = float32; });
  expect_left("no fp64 bias", [](Matmul& p) { p.dtype = p.out_dtype = float64; });
  expect_left("rows of a transposed a are not aligned", [](Matmul& p) {
    p.transpose_a = true;
    p.m = p.lda = 7;
  });
  EXPECT_EQ(record.products, 0);
  EXPECT_EQ(record.choices, 0);

  record.has_algorithm = false;
  EXPECT_FALSE(run(Product(bfloat16, bfloat16, 8, 24, 8).arguments));
  record.has_algorithm = true;
  record.algorithm_fits = false;
  EXPECT_FALSE(run(Product(bfloat16, bfloat16, 8, 40, 8).arguments));
  EXPECT_EQ(record.products, 0);
}

TEST_F(CudaMatmulLibrary, FreesItsObjects) {
  std::thread([this] { EXPECT_TRUE(run(Product(bfloat16, bfloat16, 8, 8, 8).arguments)); }).join();
  EXPECT_EQ(record.created_handles, 1);
  EXPECT_EQ(record.handles, 0);
  EXPECT_EQ(record.operations, 0);
  EXPECT_EQ(record.layouts, 0);
  EXPECT_EQ(record.preferences, 0);
}

template <class Body>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, const Body& body) {
  try {
    body();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\nlacks " << part;
    }
  }
}

TEST_F(CudaMatmulLibrary, NamesTheCallThatFailed) {
  const Product product(bfloat16, bfloat16, 8, 8, 8);
  record.create_status = CUBLAS_STATUS_NOT_INITIALIZED;
  expect_error(ErrorCode::runtime,
               {"cublasLtCreate", "CUBLAS_STATUS_NOT_INITIALIZED", "TESSERA_CUDA_MATMUL=own"},
               [&] { run(product.arguments); });
  record.create_status = CUBLAS_STATUS_SUCCESS;
  record.matmul_status = CUBLAS_STATUS_EXECUTION_FAILED;
  expect_error(ErrorCode::runtime,
               {"cublasLtMatmul failed: CUBLAS_STATUS_EXECUTION_FAILED", "8 x 8 x 8", "bfloat16"},
               [&] { run(product.arguments); });
  EXPECT_EQ(record.operations, 1) << "only the plan's is alive";
}

TEST_F(CudaMatmulLibrary, IsUsedAccordingToTheSetting) {
  const Product product(bfloat16, bfloat16, 8, 8, 8);
  for (const MatmulWay way : {MatmulWay::automatic, MatmulWay::cublas}) {
    record.products = 0;
    kernels::cuda::matmul_by(way, product.arguments, context_, library_);
    EXPECT_EQ(record.products, 1);
  }
  const kernels::cuda::CublasLtReplacement replacement(stand_in());
  ASSERT_NE(kernels::cuda::cublas_lt_library().functions, nullptr);
  EXPECT_EQ(kernels::cuda::cublas_lt_library().functions->cublasLtMatmul, &cublas::matmul);
}

TEST_F(CudaMatmulLibrary, IsReportedMissingWithTheReason) {
  const CublasLtLibrary missing =
      kernels::cuda::load_cublas_lt({"libtessera-absent.so.13", "libtessera-absent.so.12"});
  EXPECT_EQ(missing.functions, nullptr);
  const Product product(bfloat16, bfloat16, 8, 8, 8);
  expect_error(
      ErrorCode::configuration,
      {"TESSERA_CUDA_MATMUL", "libtessera-absent.so.13", "libtessera-absent.so.12",
       "LD_LIBRARY_PATH"},
      [&] { kernels::cuda::matmul_by(MatmulWay::cublas, product.arguments, context_, missing); });
  // A library of that name that lacks the functions.
  const CublasLtLibrary other = kernels::cuda::load_cublas_lt({"libm.so.6"});
  EXPECT_EQ(other.functions, nullptr);
  EXPECT_NE(other.problem.find("cublasLtCreate"), std::string::npos) << other.problem;
}

TEST(CudaMatmulWay, IsParsed) {
  EXPECT_EQ(kernels::cuda::matmul_way_of(nullptr), MatmulWay::automatic);
  EXPECT_EQ(kernels::cuda::matmul_way_of(""), MatmulWay::automatic);
  EXPECT_EQ(kernels::cuda::matmul_way_of("auto"), MatmulWay::automatic);
  EXPECT_EQ(kernels::cuda::matmul_way_of("own"), MatmulWay::own);
  EXPECT_EQ(kernels::cuda::matmul_way_of("cublas"), MatmulWay::cublas);
  expect_error(ErrorCode::configuration, {"TESSERA_CUDA_MATMUL", "\"fast\"", "auto, own or cublas"},
               [] { (void)kernels::cuda::matmul_way_of("fast"); });
}

}  // namespace
}  // namespace tessera::testing

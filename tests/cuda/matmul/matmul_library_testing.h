// A table of functions that replaces cuBLASLt: they check their arguments as the library's
// reference describes them, count calls, and multiply matrices in host memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "cuda/kernel_testing.h"
#include "kernels/cuda/matmul/matmul_cublas_library.h"

namespace tessera::testing::cublas {

using kernels::cuda::CublasLt;

// The calls of the stand-in, and its answers.
struct Record {
  int handles = 0, operations = 0, layouts = 0, preferences = 0;  // live objects
  int created_handles = 0, choices = 0, checks = 0, products = 0;
  std::vector<std::uint64_t> rows_of_choices;  // columns of the results, which are our rows
  std::map<int, std::uint64_t> preference;     // attributes of the last one
  bool has_algorithm = true;
  bool algorithm_fits = true;
  cublasStatus_t create_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t matmul_status = CUBLAS_STATUS_SUCCESS;
  std::size_t workspace_bytes = 0;
  void* workspace = nullptr;
  const void* bias = nullptr;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
};
inline Record record;

struct Operation : cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::map<int, std::uint64_t> attributes;
  [[nodiscard]] std::uint64_t get(int attribute, std::uint64_t otherwise) const {
    const auto found = attributes.find(attribute);
    return found != attributes.end() ? found->second : otherwise;
  }
};
struct Layout : cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  std::int64_t rows, columns, leading;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};
struct Preference : cublasLtMatmulPreferenceOpaque_t {
  std::map<int, std::uint64_t> attributes;
};

inline std::uint64_t number(const void* value, std::size_t bytes) {
  std::uint64_t result = 0;
  EXPECT_TRUE(bytes == 4 || bytes == 8);
  std::memcpy(&result, value, bytes);
  return result;
}

inline cublasStatus_t create(cublasLtHandle_t* handle) {
  if (record.create_status != CUBLAS_STATUS_SUCCESS) return record.create_status;
  ++record.handles;
  ++record.created_handles;
  *handle = reinterpret_cast<cublasLtHandle_t>(&record);
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t destroy(cublasLtHandle_t) {
  --record.handles;
  return CUBLAS_STATUS_SUCCESS;
}
inline const char* status_name(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
                                                 : "CUBLAS_STATUS_EXECUTION_FAILED";
}

inline cublasStatus_t create_operation(cublasLtMatmulDesc_t* created, cublasComputeType_t compute,
                                       cudaDataType_t scale) {
  auto operation = std::make_unique<Operation>();
  operation->compute = compute;
  operation->scale = scale;
  ++record.operations;
  *created = operation.release();
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t destroy_operation(cublasLtMatmulDesc_t operation) {
  const std::unique_ptr<Operation> owned(static_cast<Operation*>(operation));
  --record.operations;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t set_operation(cublasLtMatmulDesc_t operation,
                                    cublasLtMatmulDescAttributes_t attribute, const void* value,
                                    std::size_t bytes) {
  static_cast<Operation*>(operation)->attributes[attribute] = number(value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t create_layout(cublasLtMatrixLayout_t* created, cudaDataType type,
                                    std::uint64_t rows, std::uint64_t columns,
                                    std::int64_t leading) {
  EXPECT_GE(leading, static_cast<std::int64_t>(rows)) << "columns overlap";
  auto layout = std::make_unique<Layout>();
  layout->type = type;
  layout->rows = static_cast<std::int64_t>(rows);
  layout->columns = static_cast<std::int64_t>(columns);
  layout->leading = leading;
  ++record.layouts;
  *created = layout.release();
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t destroy_layout(cublasLtMatrixLayout_t layout) {
  const std::unique_ptr<Layout> owned(static_cast<Layout*>(layout));
  --record.layouts;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t set_layout(cublasLtMatrixLayout_t layout,
                                 cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                 std::size_t bytes) {
  auto& set = *static_cast<Layout*>(layout);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    EXPECT_EQ(bytes, sizeof(std::int32_t));
    set.batch = static_cast<std::int32_t>(number(value, bytes));
  } else {
    EXPECT_EQ(attribute, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
    set.stride = static_cast<std::int64_t>(number(value, bytes));
  }
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t create_preference(cublasLtMatmulPreference_t* created) {
  ++record.preferences;
  *created = std::make_unique<Preference>().release();
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t destroy_preference(cublasLtMatmulPreference_t preference) {
  const std::unique_ptr<Preference> owned(static_cast<Preference*>(preference));
  --record.preferences;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t set_preference(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute,
                                     const void* value, std::size_t bytes) {
  static_cast<Preference*>(preference)->attributes[attribute] = number(value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t choose(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t result,
                             cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference,
                             int most, cublasLtMatmulHeuristicResult_t* results, int* count) {
  EXPECT_GE(most, 1);
  ++record.choices;
  record.rows_of_choices.push_back(
      static_cast<std::uint64_t>(static_cast<const Layout*>(result)->columns));
  record.preference = static_cast<const Preference*>(preference)->attributes;
  *count = 0;
  if (!record.has_algorithm) return CUBLAS_STATUS_NOT_SUPPORTED;
  *count = 1;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].algo.data[0] = 42;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t check(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                            const cublasLtMatmulAlgo_t* algorithm,
                            cublasLtMatmulHeuristicResult_t* result) {
  ++record.checks;
  EXPECT_EQ(algorithm->data[0], 42u);
  if (!record.algorithm_fits) return CUBLAS_STATUS_INVALID_VALUE;
  result->workspaceSize = record.workspace_bytes;
  return CUBLAS_STATUS_SUCCESS;
}

inline DType dtype_of_type(cudaDataType type) {
  switch (type) {
    case CUDA_R_16BF:
      return bfloat16;
    case CUDA_R_16F:
      return float16;
    case CUDA_R_64F:
      return float64;
    default:
      EXPECT_EQ(type, CUDA_R_32F);
      return float32;
  }
}

// A matrix in the host's memory, column-major.
class Matrix {
 public:
  Matrix(const void* data, const Layout& layout, int product)
      : dtype_(dtype_of_type(layout.type)),
        leading_(layout.leading),
        data_(static_cast<const std::byte*>(data) +
              product * layout.stride * static_cast<std::int64_t>(size_of(dtype_))) {}

  [[nodiscard]] double at(std::int64_t row, std::int64_t column) const {
    const std::byte* const from = place(row, column);
    return decode({from, from + size_of(dtype_)}, dtype_)[0];
  }
  void set(std::int64_t row, std::int64_t column, double value) const {
    const auto bytes = encode({value}, dtype_);
    std::memcpy(const_cast<std::byte*>(place(row, column)), bytes.data(), bytes.size());
  }

 private:
  [[nodiscard]] const std::byte* place(std::int64_t row, std::int64_t column) const {
    return data_ + (column * leading_ + row) * static_cast<std::int64_t>(size_of(dtype_));
  }
  DType dtype_;
  std::int64_t leading_;
  const std::byte* data_;
};

inline double scalar(const void* value, cudaDataType_t type) {
  return type == CUDA_R_64F ? *static_cast<const double*>(value)
                            : static_cast<double>(*static_cast<const float*>(value));
}

// d = alpha * op(a) * op(b) + beta * c (+ bias), as the reference of cublasLtMatmul defines it.
inline cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t descriptor, const void* alpha,
                             const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                             cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                             cublasLtMatrixLayout_t c_layout, void* d,
                             cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                             void* workspace, std::size_t workspace_bytes, cudaStream_t) {
  ++record.products;
  if (record.matmul_status != CUBLAS_STATUS_SUCCESS) return record.matmul_status;
  EXPECT_EQ(algorithm->data[0], 42u);
  EXPECT_EQ(c, d);
  EXPECT_EQ(workspace_bytes, record.workspace_bytes);
  record.workspace = workspace;
  const auto& operation = *static_cast<const Operation*>(descriptor);
  const auto& left = *static_cast<const Layout*>(a_layout);
  const auto& right = *static_cast<const Layout*>(b_layout);
  const auto& result = *static_cast<const Layout*>(d_layout);
  EXPECT_EQ(c_layout, d_layout);
  record.compute = operation.compute;
  const bool left_transposed = operation.get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) != 0;
  const bool right_transposed = operation.get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) != 0;
  const std::int64_t depth = left_transposed ? left.rows : left.columns;
  EXPECT_EQ(left_transposed ? left.columns : left.rows, result.rows);
  EXPECT_EQ(right_transposed ? right.rows : right.columns, result.columns);
  EXPECT_EQ(right_transposed ? right.columns : right.rows, depth);
  const bool with_bias = operation.get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT) ==
                         CUBLASLT_EPILOGUE_BIAS;
  const auto* const bias =
      reinterpret_cast<const void*>(operation.get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0));
  EXPECT_EQ(with_bias, bias != nullptr);
  record.bias = bias;
  Layout bias_layout{};
  bias_layout.type = result.type;
  for (int product = 0; product < result.batch; ++product) {
    const Matrix l(a, left, product), r(b, right, product), out(d, result, product);
    for (std::int64_t column = 0; column < result.columns; ++column) {
      for (std::int64_t row = 0; row < result.rows; ++row) {
        double sum = 0;
        for (std::int64_t i = 0; i < depth; ++i) {
          sum += (left_transposed ? l.at(i, row) : l.at(row, i)) *
                 (right_transposed ? r.at(column, i) : r.at(i, column));
        }
        double value = scalar(alpha, operation.scale) * sum;
        const double before = scalar(beta, operation.scale);
        if (before != 0) value += before * out.at(row, column);
        if (with_bias) value += Matrix(bias, bias_layout, 0).at(row, 0);
        out.set(row, column, value);
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

inline CublasLt stand_in() {
  return {create,
          destroy,
          status_name,
          create_operation,
          destroy_operation,
          set_operation,
          create_layout,
          destroy_layout,
          set_layout,
          create_preference,
          destroy_preference,
          set_preference,
          choose,
          check,
          matmul};
}

}  // namespace tessera::testing::cublas

// The functions of the table.
#include "emulator/cublas/cublas_lt.h"

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "emulator/cublas/product.h"
#include "emulator/cuda/api.h"

namespace tessera::emulator {
namespace cublas {
namespace {

// The fields of an algorithm: what it is, and the operation that it was chosen for.
constexpr std::uint64_t plain_algorithm = 0x7465737365726121;
constexpr std::size_t workspace_of_an_algorithm = 1024;

// The target of a handle; it holds no data.
struct Handle {
  int device = 0;
};

cublasStatus_t refuse(cublasStatus_t status, const char* function, const char* problem) {
  print_line("{}: {}", function, problem);
  return status;
}

// Takes an attribute's value, of exactly its size.
template <class Value>
cublasStatus_t take(Value& value, const char* function, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof(Value)) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, function, "an attribute of another size");
  }
  std::memcpy(&value, from, sizeof(Value));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create(cublasLtHandle_t* handle) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(std::make_unique<Handle>(Handle{device}).release());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t destroy(cublasLtHandle_t handle) {
  const std::unique_ptr<Handle> owned(reinterpret_cast<Handle*>(handle));
  return CUBLAS_STATUS_SUCCESS;
}

const char* status_name(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_?";
  }
}

cublasStatus_t create_operation(cublasLtMatmulDesc_t* created, cublasComputeType_t compute_type,
                                cudaDataType_t scale) {
  auto operation = std::make_unique<Operation>();
  operation->compute = compute_type;
  operation->scale = scale;
  *created = operation.release();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t destroy_operation(cublasLtMatmulDesc_t operation) {
  const std::unique_ptr<Operation> owned(static_cast<Operation*>(operation));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_operation(cublasLtMatmulDesc_t descriptor,
                             cublasLtMatmulDescAttributes_t attribute, const void* value,
                             std::size_t bytes) {
  constexpr const char* function = "cublasLtMatmulDescSetAttribute";
  auto& operation = *static_cast<Operation*>(descriptor);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(operation.transpose_a, function, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(operation.transpose_b, function, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(operation.epilogue, function, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(operation.bias, function, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      operation.has_bias_type = true;
      return take(operation.bias_type, function, value, bytes);
    default:
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, "this attribute is not emulated");
  }
}

cublasStatus_t create_layout(cublasLtMatrixLayout_t* created, cudaDataType type, std::uint64_t rows,
                             std::uint64_t columns, std::int64_t leading) {
  auto layout = std::make_unique<Layout>();
  layout->type = type;
  layout->rows = static_cast<std::int64_t>(rows);
  layout->columns = static_cast<std::int64_t>(columns);
  layout->leading = leading;
  *created = layout.release();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t destroy_layout(cublasLtMatrixLayout_t layout) {
  const std::unique_ptr<Layout> owned(static_cast<Layout*>(layout));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_layout(cublasLtMatrixLayout_t descriptor,
                          cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                          std::size_t bytes) {
  constexpr const char* function = "cublasLtMatrixLayoutSetAttribute";
  auto& layout = *static_cast<Layout*>(descriptor);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return take(layout.batch, function, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return take(layout.stride, function, value, bytes);
    default:
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, "this attribute is not emulated");
  }
}

cublasStatus_t create_preference(cublasLtMatmulPreference_t* created) {
  *created = std::make_unique<Preference>().release();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t destroy_preference(cublasLtMatmulPreference_t preference) {
  const std::unique_ptr<Preference> owned(static_cast<Preference*>(preference));
  return CUBLAS_STATUS_SUCCESS;
}

// The only algorithm accepts any alignment and splits nothing, so these preferences always hold.
cublasStatus_t set_preference(cublasLtMatmulPreference_t descriptor,
                              cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                              std::size_t bytes) {
  constexpr const char* function = "cublasLtMatmulPreferenceSetAttribute";
  std::uint32_t any = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(static_cast<Preference*>(descriptor)->most_workspace_bytes, function, value,
                  bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(any, function, value, bytes);
    default:
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, "this attribute is not emulated");
  }
}

Product product_of(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  Product product;
  product.operation = *static_cast<const Operation*>(operation);
  product.a_layout = *static_cast<const Layout*>(a);
  product.b_layout = *static_cast<const Layout*>(b);
  product.c_layout = *static_cast<const Layout*>(c);
  product.d_layout = *static_cast<const Layout*>(d);
  return product;
}

// An algorithm is valid for the types, transpositions and epilogue that it was chosen for, and for
// any sizes.
cublasLtMatmulAlgo_t algorithm_for(const Product& p, std::uint64_t workspace_bytes) {
  cublasLtMatmulAlgo_t algorithm{};
  const std::array<std::uint64_t, 8> data{plain_algorithm,
                                          workspace_bytes,
                                          static_cast<std::uint64_t>(p.operation.compute),
                                          static_cast<std::uint64_t>(p.a_layout.type),
                                          static_cast<std::uint64_t>(p.d_layout.type),
                                          static_cast<std::uint64_t>(p.operation.transpose_a),
                                          static_cast<std::uint64_t>(p.operation.transpose_b),
                                          static_cast<std::uint64_t>(p.operation.epilogue)};
  std::copy(data.begin(), data.end(), algorithm.data);
  return algorithm;
}

bool fits(const cublasLtMatmulAlgo_t& algorithm, const Product& product) {
  const cublasLtMatmulAlgo_t expected = algorithm_for(product, algorithm.data[1]);
  return std::memcmp(&algorithm, &expected, sizeof(algorithm)) == 0;
}

bool known_epilogue(const Product& product) {
  return product.operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT || product.with_bias();
}

cublasStatus_t choose(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                      cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                      cublasLtMatmulPreference_t preference, int most,
                      cublasLtMatmulHeuristicResult_t* results, int* count) {
  constexpr const char* function = "cublasLtMatmulAlgoGetHeuristic";
  const Product product = product_of(operation, a, b, c, d);
  *count = 0;
  if (most < 1) return refuse(CUBLAS_STATUS_INVALID_VALUE, function, "no results are asked for");
  if (!known_epilogue(product)) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, "this epilogue is not emulated");
  }
  if (const char* problem = problem_of(product)) {
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, function, problem);
  }
  const std::uint64_t allowed = static_cast<const Preference*>(preference)->most_workspace_bytes;
  const std::uint64_t workspace =
      allowed >= workspace_of_an_algorithm ? workspace_of_an_algorithm : 0;
  *count = 1;
  results[0] = {};
  results[0].algo = algorithm_for(product, workspace);
  results[0].workspaceSize = workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                     const cublasLtMatmulAlgo_t* algorithm,
                     cublasLtMatmulHeuristicResult_t* result) {
  constexpr const char* function = "cublasLtMatmulAlgoCheck";
  const Product product = product_of(operation, a, b, c, d);
  if (const char* problem = problem_of(product)) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, function, problem);
  }
  if (!fits(*algorithm, product)) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, function,
                  "the algorithm was chosen for other types, transpositions or epilogue");
  }
  *result = {};
  result->algo = *algorithm;
  result->workspaceSize = algorithm->data[1];
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

double scalar(const void* value, cudaDataType_t type) {
  return type == CUDA_R_64F ? *static_cast<const double*>(value)
                            : static_cast<double>(*static_cast<const float*>(value));
}

std::vector<Access> accesses_of(const Product& p, void* workspace, std::size_t workspace_bytes) {
  std::vector<Access> accesses{{p.a, span_of(p.a_layout), false},
                               {p.b, span_of(p.b_layout), false},
                               {p.d, span_of(p.d_layout), true}};
  if (p.beta != 0) accesses.push_back({p.c, span_of(p.c_layout), false});
  if (p.with_bias()) {
    const auto bytes = p.d_layout.rows * size_of_type(p.bias_type());
    accesses.push_back({p.operation.bias, static_cast<std::size_t>(bytes), false});
  }
  if (workspace_bytes > 0) accesses.push_back({workspace, workspace_bytes, true});
  return accesses;
}

void require_live(const std::vector<Access>& accesses) {
  for (const Access& access : accesses) {
    api::require(runtime().memory().find(access.memory, access.bytes).has_value(),
                 cudaErrorIllegalAddress, "{} bytes at {} are not all in a live allocation",
                 access.bytes, access.memory);
  }
}

cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                      const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                      cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                      cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                      std::size_t workspace_bytes, cudaStream_t handle) {
  constexpr const char* function = "cublasLtMatmul";
  Product product = product_of(operation, a_layout, b_layout, c_layout, d_layout);
  if (const char* problem = problem_of(product)) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, function, problem);
  }
  if (!fits(*algorithm, product) || algorithm->data[1] > workspace_bytes) {
    return refuse(CUBLAS_STATUS_INVALID_VALUE, function,
                  "the algorithm was chosen for another operation or needs more workspace");
  }
  product.a = a;
  product.b = b;
  product.c = c;
  product.d = d;
  product.alpha = scalar(alpha, product.operation.scale);
  product.beta = scalar(beta, product.operation.scale);
  const cudaError_t error = api::call(function, [&] {
    const std::shared_ptr<Stream> stream = api::stream_of(handle);
    const std::size_t used = algorithm->data[1];
    const std::vector<Access> accesses = accesses_of(product, workspace, used);
    require_live(accesses);
    stream->enqueue(function, accesses, [product, workspace, used] {
      // The library would keep partial sums there: callers must not rely on the earlier contents.
      if (used > 0) std::memset(workspace, 0xff, used);
      compute(product);
    });
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace
}  // namespace cublas

kernels::cuda::CublasLt cublas_lt() {
  return {cublas::create,
          cublas::destroy,
          cublas::status_name,
          cublas::create_operation,
          cublas::destroy_operation,
          cublas::set_operation,
          cublas::create_layout,
          cublas::destroy_layout,
          cublas::set_layout,
          cublas::create_preference,
          cublas::destroy_preference,
          cublas::set_preference,
          cublas::choose,
          cublas::check,
          cublas::matmul};
}

}  // namespace tessera::emulator

// Calls into cuBLASLt, and each thread's cache of its objects. Row-major matrices are passed as
// transposed column-major ones: c' = op(b)' * op(a)', so cuBLASLt's left operand is b.
#include "kernels/cuda/matmul/matmul_cublas.h"

#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/matmul/matmul_kernels.h"

namespace tessera::kernels::cuda {
namespace {

constexpr std::int64_t operand_alignment = 16;
// Algorithms are chosen for this many rows: enough to occupy a device, but few enough that smaller
// products do not get tiles that leave it empty.
constexpr std::int64_t rows_for_choice = 2048;
constexpr std::uint64_t most_workspace_bytes = std::uint64_t{32} << 20;
// The limit of each cache; a program that keeps changing shapes clears the cache at the limit.
constexpr std::size_t most_cached = 1024;

// Everything that an algorithm and its descriptors depend on.
struct Description {
  std::int64_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
  bool transpose_a, transpose_b, bias;
  DType dtype, out_dtype;
  bool operator==(const Description&) const = default;
};

struct DescriptionHash {
  std::size_t operator()(const Description& d) const {
    std::uint64_t hash = 0;
    const auto mix = [&hash](std::int64_t value) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 29;
    };
    for (const std::int64_t value :
         {d.m, d.n, d.k, d.lda, d.ldb, d.ldc, d.batch, d.stride_a, d.stride_b, d.stride_c}) {
      mix(value);
    }
    mix(d.transpose_a | d.transpose_b << 1 | d.bias << 2 | static_cast<int>(d.dtype) << 8 |
        static_cast<int>(d.out_dtype) << 16);
    return hash;
  }
};

Description description_of(const Matmul& p) {
  const bool many = p.batch > 1;
  return {p.m,
          p.n,
          p.k,
          p.lda,
          p.ldb,
          p.ldc,
          p.batch,
          many ? p.stride_a : 0,
          many ? p.stride_b : 0,
          many ? p.stride_c : 0,
          p.transpose_a,
          p.transpose_b,
          p.bias != nullptr,
          p.dtype,
          p.out_dtype};
}

// A weight's gradient: its rows are the weight's, not samples, and k counts the samples. The shape
// fixes all of its bits, so its algorithm may depend on all of the shape, and k may be split: the
// result often has fewer tiles than the device has multiprocessors.
bool is_weight_gradient(const Description& d) {
  return d.transpose_a;
}

// The product for which the algorithm of `d` is chosen. Except for a weight's gradient it does not
// depend on the number of rows of d.
Description chosen_for(Description d) {
  if (is_weight_gradient(d)) return d;
  d.m = rows_for_choice;
  if (d.stride_a != 0) d.stride_a = d.m * d.lda;
  if (d.stride_c != 0) d.stride_c = d.m * d.ldc;
  return d;
}

bool covered(const Matmul& p) {
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  const auto out_size = static_cast<std::int64_t>(size_of(p.out_dtype));
  const auto begins_well = [&p](const void* matrix, std::int64_t stride, std::int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(matrix) % operand_alignment == 0 &&
           (p.batch == 1 || stride * bytes % operand_alignment == 0);
  };
  if (p.k == 0) return false;
  if (p.bias != nullptr && (p.out_dtype != p.dtype || p.dtype == float64)) return false;
  if (p.transpose_a && p.lda * size % operand_alignment != 0) return false;
  return begins_well(p.a, p.stride_a, size) && begins_well(p.b, p.stride_b, size) &&
         begins_well(p.c, p.stride_c, out_size) && begins_well(p.bias, 0, size);
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    case DType::float64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

void check_call(const CublasLt& lt, cublasStatus_t status, const char* call, const Description& d) {
  TESSERA_CHECK(status == CUBLAS_STATUS_SUCCESS, ErrorCode::runtime,
                "{} failed: {} (product of {} x {} x {}, batch {}, {} to {}); "
                "TESSERA_CUDA_MATMUL=own avoids cuBLASLt",
                call, lt.cublasLtGetStatusName(status), d.m, d.n, d.k, d.batch, name_of(d.dtype),
                name_of(d.out_dtype));
}

template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, cublasStatus_t (*)(Handle)>;

// The operation and its matrices in cuBLASLt's terms.
class Descriptors {
 public:
  Descriptors(const CublasLt& lt, const Description& d)
      : operation_(create_operation(lt, d)),
        left_(d.transpose_b ? create_layout(lt, d, d.dtype, d.k, d.n, d.ldb, d.stride_b)
                            : create_layout(lt, d, d.dtype, d.n, d.k, d.ldb, d.stride_b)),
        right_(d.transpose_a ? create_layout(lt, d, d.dtype, d.m, d.k, d.lda, d.stride_a)
                             : create_layout(lt, d, d.dtype, d.k, d.m, d.lda, d.stride_a)),
        result_(create_layout(lt, d, d.out_dtype, d.n, d.m, d.ldc, d.stride_c)) {}

  void set_bias(const CublasLt& lt, const Description& d, const void* bias) const {
    check_call(lt,
               lt.cublasLtMatmulDescSetAttribute(
                   operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
               "cublasLtMatmulDescSetAttribute(BIAS_POINTER)", d);
  }

  [[nodiscard]] cublasLtMatmulDesc_t operation() const { return operation_.get(); }
  [[nodiscard]] cublasLtMatrixLayout_t left() const { return left_.get(); }
  [[nodiscard]] cublasLtMatrixLayout_t right() const { return right_.get(); }
  [[nodiscard]] cublasLtMatrixLayout_t result() const { return result_.get(); }

 private:
  static Owned<cublasLtMatmulDesc_t> create_operation(const CublasLt& lt, const Description& d) {
    const bool wide = d.dtype == float64;
    cublasLtMatmulDesc_t created = nullptr;
    // CUBLAS_COMPUTE_32F is fp32 without TF32.
    check_call(lt,
               lt.cublasLtMatmulDescCreate(&created, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                           wide ? CUDA_R_64F : CUDA_R_32F),
               "cublasLtMatmulDescCreate", d);
    Owned<cublasLtMatmulDesc_t> operation(created, lt.cublasLtMatmulDescDestroy);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      check_call(lt, lt.cublasLtMatmulDescSetAttribute(created, attribute, &value, sizeof(value)),
                 "cublasLtMatmulDescSetAttribute", d);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, d.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, d.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (d.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(d.dtype));
    }
    return operation;
  }

  static Owned<cublasLtMatrixLayout_t> create_layout(const CublasLt& lt, const Description& d,
                                                     DType dtype, std::int64_t rows,
                                                     std::int64_t columns, std::int64_t leading,
                                                     std::int64_t stride) {
    cublasLtMatrixLayout_t created = nullptr;
    check_call(
        lt,
        lt.cublasLtMatrixLayoutCreate(&created, type_of(dtype), static_cast<std::uint64_t>(rows),
                                      static_cast<std::uint64_t>(columns), leading),
        "cublasLtMatrixLayoutCreate", d);
    Owned<cublasLtMatrixLayout_t> layout(created, lt.cublasLtMatrixLayoutDestroy);
    if (d.batch == 1) return layout;
    const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      check_call(lt, lt.cublasLtMatrixLayoutSetAttribute(created, attribute, &value, sizeof(value)),
                 "cublasLtMatrixLayoutSetAttribute", d);
    };
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(d.batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
    return layout;
  }

  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatrixLayout_t> left_, right_, result_;
};

struct Algorithm {
  bool found = false;
  cublasLtMatmulAlgo_t value{};
};

struct Plan {
  Descriptors descriptors;
  Algorithm algorithm;
  std::size_t workspace_bytes = 0;
};

// A thread's state for the products of a device: a handle, the chosen algorithms, and a plan for
// each description. Only its thread uses it.
class ThreadPlans {
 public:
  static ThreadPlans& of_this_thread(const CublasLtLibrary& library, int device,
                                     const Description& d) {
    static thread_local std::vector<std::unique_ptr<ThreadPlans>> all;
    for (const auto& plans : all) {
      if (plans->functions_ == library.functions && plans->device_ == device) return *plans;
    }
    all.push_back(std::make_unique<ThreadPlans>(library.functions, device, d));
    return *all.back();
  }

  ThreadPlans(std::shared_ptr<const CublasLt> functions, int device, const Description& d)
      : functions_(std::move(functions)), device_(device), handle_(create_handle(*functions_, d)) {}

  const Plan& plan_of(const Description& d, const void* bias) {
    if (const auto known = plans_.find(d); known != plans_.end()) return *known->second;
    if (plans_.size() >= most_cached) plans_.clear();
    return *plans_.emplace(d, create_plan(d, bias)).first->second;
  }

  [[nodiscard]] cublasLtHandle_t handle() const { return handle_.get(); }

 private:
  static Owned<cublasLtHandle_t> create_handle(const CublasLt& lt, const Description& d) {
    cublasLtHandle_t created = nullptr;
    check_call(lt, lt.cublasLtCreate(&created), "cublasLtCreate", d);
    return {created, lt.cublasLtDestroy};
  }

  std::unique_ptr<Plan> create_plan(const Description& d, const void* bias) {
    const CublasLt& lt = *functions_;
    auto plan = std::make_unique<Plan>(Plan{Descriptors(lt, d), algorithm_of(d, bias)});
    if (!plan->algorithm.found) return plan;
    const Descriptors& with = plan->descriptors;
    if (d.bias) with.set_bias(lt, d, bias);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        lt.cublasLtMatmulAlgoCheck(handle(), with.operation(), with.left(), with.right(),
                                   with.result(), with.result(), &plan->algorithm.value, &result);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
        status == CUBLAS_STATUS_ARCH_MISMATCH) {
      plan->algorithm.found = false;  // it does not support this number of rows
      return plan;
    }
    check_call(lt, status, "cublasLtMatmulAlgoCheck", d);
    plan->algorithm.found = result.workspaceSize <= most_workspace_bytes;
    plan->workspace_bytes = result.workspaceSize;
    return plan;
  }

  Algorithm algorithm_of(const Description& d, const void* bias) {
    const Description key = chosen_for(d);
    if (const auto known = algorithms_.find(key); known != algorithms_.end()) return known->second;
    if (algorithms_.size() >= most_cached) algorithms_.clear();
    return algorithms_.emplace(key, choose(key, bias)).first->second;
  }

  Algorithm choose(const Description& d, const void* bias) const {
    const CublasLt& lt = *functions_;
    const Descriptors with(lt, d);
    if (d.bias) with.set_bias(lt, d, bias);
    const Owned<cublasLtMatmulPreference_t> preference = create_preference(d);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status = lt.cublasLtMatmulAlgoGetHeuristic(
        handle(), with.operation(), with.left(), with.right(), with.result(), with.result(),
        preference.get(), 1, &result, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check_call(lt, status, "cublasLtMatmulAlgoGetHeuristic", d);
    if (count == 0) return {};
    return {result.state == CUBLAS_STATUS_SUCCESS, result.algo};
  }

  [[nodiscard]] Owned<cublasLtMatmulPreference_t> create_preference(const Description& d) const {
    const CublasLt& lt = *functions_;
    cublasLtMatmulPreference_t created = nullptr;
    check_call(lt, lt.cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate",
               d);
    Owned<cublasLtMatmulPreference_t> preference(created, lt.cublasLtMatmulPreferenceDestroy);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_call(lt,
                 lt.cublasLtMatmulPreferenceSetAttribute(created, attribute, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute", d);
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_workspace_bytes);
    // Otherwise k is not split: the split would depend on the number of rows, and so would the
    // order of every sum. Partial sums are fp32, in the workspace.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(is_weight_gradient(d) ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                         : CUBLASLT_REDUCTION_SCHEME_NONE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, static_cast<std::uint32_t>(operand_alignment));
    }
    return preference;
  }

  std::shared_ptr<const CublasLt> functions_;
  int device_;
  Owned<cublasLtHandle_t> handle_;
  std::unordered_map<Description, Algorithm, DescriptionHash> algorithms_;
  std::unordered_map<Description, std::unique_ptr<Plan>, DescriptionHash> plans_;
};

// Scale: the type of alpha and beta.
template <class Scale>
cublasStatus_t multiply(const CublasLt& lt, cublasLtHandle_t handle, const Plan& plan,
                        const Matmul& p, Context& context) {
  const Scale alpha = p.alpha;
  const Scale beta = p.accumulate ? 1 : 0;
  const Descriptors& with = plan.descriptors;
  void* const workspace =
      plan.workspace_bytes > 0 ? context.scratch(plan.workspace_bytes) : nullptr;
  return lt.cublasLtMatmul(handle, with.operation(), &alpha, p.b, with.left(), p.a, with.right(),
                           &beta, p.c, with.result(), p.c, with.result(), &plan.algorithm.value,
                           workspace, plan.workspace_bytes, context.stream);
}

}  // namespace

bool matmul_cublas(const Matmul& product, Context& context, const CublasLtLibrary& library) {
  if (!covered(product)) return false;
  const CublasLt& lt = *library.functions;
  const Description description = description_of(product);
  ThreadPlans& plans = ThreadPlans::of_this_thread(library, context.device, description);
  const Plan& plan = plans.plan_of(description, product.bias);
  if (!plan.algorithm.found) return false;
  if (description.bias) plan.descriptors.set_bias(lt, description, product.bias);
  const cublasStatus_t status = product.dtype == float64
                                    ? multiply<double>(lt, plans.handle(), plan, product, context)
                                    : multiply<float>(lt, plans.handle(), plan, product, context);
  check_call(lt, status, "cublasLtMatmul", description);
  return true;
}

}  // namespace tessera::kernels::cuda

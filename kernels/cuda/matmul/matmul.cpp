// Matrix products on a GPU: checks, and the choice of the implementation.
#include "kernels/matmul.h"

#include <climits>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/cuda/device/registry.h"
#include "kernels/cuda/matmul/matmul_cublas.h"
#include "kernels/cuda/matmul/matmul_kernels.h"
#include "kernels/cuda/matmul/matmul_way.h"

namespace tessera::kernels::cuda {
namespace {

// Sizes that the own kernels count in int, with room for a tile beyond the edge.
constexpr std::int64_t most_elements = INT_MAX - 256;

void check(const Matmul& p) {
  const auto needs = [&p](bool condition, const char* what) {
    TESSERA_REQUIRE(condition, "matmul: {} (m {}, n {}, k {}, strides {}, {}, {}, {} to {})", what,
                    p.m, p.n, p.k, p.lda, p.ldb, p.ldc, name_of(p.dtype), name_of(p.out_dtype));
  };
  const bool is_16_bit = p.dtype == bfloat16 || p.dtype == float16;
  needs(is_floating(p.dtype), "the operands must be of a floating-point type");
  needs(p.out_dtype == p.dtype || (is_16_bit && p.out_dtype == float32),
        "the result must be of the operands' type, or float32 from a 16-bit type");
  needs(p.m >= 0 && p.n >= 0 && p.k >= 0 && p.batch >= 0, "a size is negative");
  needs(p.m <= most_elements && p.n <= most_elements && p.k <= most_elements,
        "a size does not fit an int");
  needs(p.lda >= (p.transpose_a ? p.m : p.k), "a's rows overlap");
  needs(p.ldb >= (p.transpose_b ? p.k : p.n), "b's rows overlap");
  needs(p.ldc >= p.n, "c's rows overlap");
}

}  // namespace

MatmulWay matmul_way_of(const char* text) {
  const std::string_view way = text != nullptr ? text : "";
  if (way.empty() || way == "auto") return MatmulWay::automatic;
  if (way == "own") return MatmulWay::own;
  if (way == "cublas") return MatmulWay::cublas;
  fail(ErrorCode::configuration, "TESSERA_CUDA_MATMUL is \"{}\"; it may be auto, own or cublas",
       way);
}

MatmulWay matmul_way() {
  static const MatmulWay way = matmul_way_of(std::getenv("TESSERA_CUDA_MATMUL"));
  return way;
}

std::string describe_products(MatmulWay way, const CublasLtLibrary& library) {
  if (way == MatmulWay::own) return "our own kernels (TESSERA_CUDA_MATMUL=own)";
  if (library.functions != nullptr) return library.name;
  return fmt::format("our own kernels (no cuBLASLt: {})", library.problem);
}

void load_products() {
  if (matmul_way() != MatmulWay::own) (void)cublas_lt_library();
}

void matmul_own(const Matmul& product, Context& context) {
  switch (product.dtype) {
    case DType::bfloat16:
      return matmul_bfloat16(product, context);
    case DType::float16:
      return matmul_float16(product, context);
    default:
      return matmul_simt(product, context);
  }
}

void matmul_by(MatmulWay way, const Matmul& product, Context& context,
               const CublasLtLibrary& library) {
  check(product);
  TESSERA_CHECK(way != MatmulWay::cublas || library.functions != nullptr, ErrorCode::configuration,
                "TESSERA_CUDA_MATMUL is cublas, but cuBLASLt is not available: {}; install it, put "
                "its folder on LD_LIBRARY_PATH, or set TESSERA_CUDA_MATMUL=own",
                library.problem);
  if (product.m == 0 || product.n == 0 || product.batch == 0) return;
  const bool try_cublas = way != MatmulWay::own && library.functions != nullptr;
  if (try_cublas && matmul_cublas(product, context, library)) {
    ++context.products.library;
    return;
  }
  matmul_own(product, context);
  ++context.products.own;
}

void matmul(const Matmul& product, Queue queue) {
  const MatmulWay way = matmul_way();
  static const CublasLtLibrary none;
  matmul_by(way, product, context_of(queue), way == MatmulWay::own ? none : cublas_lt_library());
}

}  // namespace tessera::kernels::cuda

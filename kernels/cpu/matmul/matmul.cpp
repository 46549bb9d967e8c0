// Matrix products: checks, batches, and the choice of the fastest path for the types and the
// processor.
#include "kernels/matmul.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_amx.h"
#include "kernels/cpu/matmul/matmul_convert.h"
#include "kernels/cpu/matmul/matmul_fp32.h"
#include "kernels/cpu/matmul/matmul_fp64.h"
#include "kernels/cpu/matmul/matmul_onednn.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/element.h"
#include "kernels/registry.h"

namespace tessera::kernels::cpu {
namespace {

// For fewer rows than this, and for a single column, dnnl_sgemm uses other kernels with other
// rounding.
constexpr std::int64_t kFewestRows = 16;
constexpr std::int64_t kFewestColumns = 2;

// The same for oneDNN's bfloat16 products, which do not use AMX for small sizes.
constexpr std::int64_t kFewestRowsBFloat16 = 48;

// Elements of a widened operand that are processed at once. With the block of the other operand and
// of the result, a thread's scratch memory for 16-bit products is some 20 MiB.
constexpr std::int64_t kWidenedElements = std::int64_t{1} << 21;

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
  needs(p.lda >= (p.transpose_a ? p.m : p.k), "a's rows overlap");
  needs(p.ldb >= (p.transpose_b ? p.k : p.n), "b's rows overlap");
  needs(p.ldc >= p.n, "c's rows overlap");
}

// The result of a product over zero elements: alpha * 0 (+ c) (+ bias).
void fill_with_bias(float* c, std::int64_t ldc, const float* bias, std::int64_t rows,
                    std::int64_t columns, bool accumulate) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const row = c + r * ldc;
    if (bias != nullptr && !accumulate) {
      std::copy_n(bias, columns, row);
      continue;
    }
    for (std::int64_t j = 0; j < columns; ++j) {
      const float added = bias != nullptr ? bias[j] : 0.0f;
      row[j] = accumulate ? row[j] + added : added;
    }
  }
}

void copy_rows(const void* in, std::int64_t in_stride, void* out, std::int64_t out_stride,
               std::int64_t rows, std::int64_t columns, DType dtype) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(element(out, dtype, r * out_stride), element(in, dtype, r * in_stride),
                static_cast<std::size_t>(columns) * size_of(dtype));
  }
}

// Copies without gaps between rows, with zeros to the right and below.
void* dense_copy(ScratchBuffer& buffer, const void* in, std::int64_t stride, std::int64_t rows,
                 std::int64_t columns, std::int64_t padded_rows, std::int64_t padded_columns,
                 DType dtype) {
  const std::int64_t bytes =
      padded_rows * padded_columns * static_cast<std::int64_t>(size_of(dtype));
  auto* const out = buffer.get<std::byte>(bytes);
  if (padded_rows != rows || padded_columns != columns) {
    std::memset(out, 0, static_cast<std::size_t>(bytes));
  }
  copy_rows(in, stride, out, padded_columns, rows, columns, dtype);
  return out;
}

// Runs `product` on copies without gaps, of at least `rows` x `columns`: from this size on, `run`
// rounds every row alike. An operand that already fits is used in place.
template <class Run>
void run_dense(const Matmul& product, std::int64_t rows, std::int64_t columns, Run&& run) {
  static thread_local ScratchBuffer a_buffer, b_buffer, c_buffer, bias_buffer;
  Matmul dense = product;
  const std::int64_t k = product.k;
  const std::int64_t m = dense.m = std::max(product.m, rows);
  const std::int64_t n = dense.n = std::max(product.n, columns);
  dense.lda = product.transpose_a ? m : k;
  dense.ldb = product.transpose_b ? k : n;
  dense.ldc = n;
  if (m != product.m || dense.lda != product.lda) {
    dense.a = product.transpose_a
                  ? dense_copy(a_buffer, product.a, product.lda, k, product.m, k, m, product.dtype)
                  : dense_copy(a_buffer, product.a, product.lda, product.m, k, m, k, product.dtype);
  }
  if (n != product.n || dense.ldb != product.ldb) {
    dense.b = product.transpose_b
                  ? dense_copy(b_buffer, product.b, product.ldb, product.n, k, n, k, product.dtype)
                  : dense_copy(b_buffer, product.b, product.ldb, k, product.n, k, n, product.dtype);
  }
  if (n != product.n && product.bias != nullptr) {
    dense.bias = dense_copy(bias_buffer, product.bias, n, 1, product.n, 1, n, product.dtype);
  }
  if (m == product.m && n == product.n && dense.ldc == product.ldc) return run(dense);
  const std::int64_t rows_before = product.accumulate ? product.m : 0;
  dense.c =
      dense_copy(c_buffer, product.c, product.ldc, rows_before, product.n, m, n, product.out_dtype);
  run(dense);
  copy_rows(dense.c, n, product.c, product.ldc, product.m, product.n, product.out_dtype);
}

void matmul_fp32(const Matmul& product) {
  Matmul p = product;
  if (p.bias != nullptr || p.k == 0) {
    fill_with_bias(static_cast<float*>(p.c), p.ldc, static_cast<const float*>(p.bias), p.m, p.n,
                   p.accumulate);
    p.bias = nullptr;
    p.accumulate = true;
  }
  if (p.k == 0) return;
  if (!onednn_rounds_rows_alike()) {
    matmul_fp32_in_order(p);
  } else if (p.m < kFewestRows || p.n < kFewestColumns) {
    run_dense(p, kFewestRows, kFewestColumns, onednn_sgemm);
  } else {
    onednn_sgemm(p);
  }
}

// One block of a 16-bit product: rows [row, row+rows) times the columns that `block.b` already
// holds in widened form. `block` is the float32 product of the block; `product` is the whole 16-bit
// one.
void widened_block(const Matmul& product, Matmul block, std::int64_t row, std::int64_t column) {
  static thread_local ScratchBuffer a_buffer, c_buffer;
  const std::int64_t a_rows = product.transpose_a ? product.k : block.m;
  const std::int64_t a_columns = product.transpose_a ? block.m : product.k;
  float* const a = a_buffer.get<float>(a_rows * a_columns);
  widen_matrix(element(product.a, product.dtype, row * (product.transpose_a ? 1 : product.lda)),
               product.dtype, product.lda, a, a_columns, a_rows, a_columns);
  block.a = a;
  block.lda = a_columns;
  void* const c = element(product.c, product.out_dtype, row * product.ldc + column);
  if (product.out_dtype == float32) {
    block.c = c;
    block.ldc = product.ldc;
    matmul_fp32(block);
    return;
  }
  float* const wide = c_buffer.get<float>(block.m * block.n);
  if (product.accumulate) {
    widen_matrix(c, product.dtype, product.ldc, wide, block.n, block.m, block.n);
  }
  block.c = wide;
  block.ldc = block.n;
  matmul_fp32(block);
  narrow_matrix(wide, block.n, c, product.dtype, product.ldc, block.m, block.n);
}

// Widens 16-bit operands to float32, multiplies there and rounds once.
void matmul_widened(const Matmul& product) {
  static thread_local ScratchBuffer b_buffer, bias_buffer;
  const std::int64_t k = std::max<std::int64_t>(product.k, 1);
  const std::int64_t rows = std::max<std::int64_t>(kWidenedElements / 4 / k / 16 * 16, 256);
  const std::int64_t columns = std::max<std::int64_t>(kWidenedElements / k / 16 * 16, 512);
  Matmul block = product;
  block.dtype = block.out_dtype = float32;
  for (std::int64_t column = 0; column < product.n; column += columns) {
    block.n = std::min(columns, product.n - column);
    const std::int64_t b_rows = product.transpose_b ? block.n : product.k;
    const std::int64_t b_columns = product.transpose_b ? product.k : block.n;
    float* const b = b_buffer.get<float>(b_rows * b_columns);
    widen_matrix(
        element(product.b, product.dtype, column * (product.transpose_b ? product.ldb : 1)),
        product.dtype, product.ldb, b, b_columns, b_rows, b_columns);
    block.b = b;
    block.ldb = b_columns;
    if (product.bias != nullptr) {
      float* const bias = bias_buffer.get<float>(block.n);
      widen_matrix(element(product.bias, product.dtype, column), product.dtype, block.n, bias,
                   block.n, 1, block.n);
      block.bias = bias;
    }
    for (std::int64_t row = 0; row < product.m; row += rows) {
      block.m = std::min(rows, product.m - row);
      widened_block(product, block, row, column);
    }
  }
}

void matmul_bf16(const Matmul& product) {
  if (product.k == 0 || !has_bfloat16_products()) return matmul_widened(product);
  if (has_amx_products()) return amx_matmul(product);
  bool done = true;
  // oneDNN has fast kernels only for operands without gaps.
  run_dense(product, kFewestRowsBFloat16, 1,
            [&done](const Matmul& dense) { done = onednn_bfloat16(dense); });
  if (!done) matmul_widened(product);
}

void one_product(const Matmul& product) {
  switch (product.dtype) {
    case DType::float32:
      return matmul_fp32(product);
    case DType::float64:
      return matmul_fp64(product);
    case DType::bfloat16:
      return matmul_bf16(product);
    default:
      return matmul_widened(product);
  }
}

}  // namespace

void matmul(const Matmul& arguments, Queue) {
  check(arguments);
  if (arguments.m == 0 || arguments.n == 0) return;
  // Many small products run in parallel; a few, or large ones, run one after the other on all
  // threads.
  const std::int64_t threads = compute_threads();
  const bool side_by_side =
      arguments.batch >= 2 * threads && arguments.m * arguments.n * arguments.k < (1 << 24);
  const std::int64_t grain = side_by_side ? 1 : std::max<std::int64_t>(arguments.batch, 1);
  parallel_for(0, arguments.batch, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      Matmul product = arguments;
      product.batch = 1;
      product.a = element(arguments.a, arguments.dtype, i * arguments.stride_a);
      product.b = element(arguments.b, arguments.dtype, i * arguments.stride_b);
      product.c = element(arguments.c, arguments.out_dtype, i * arguments.stride_c);
      one_product(product);
    }
  });
}

}  // namespace tessera::kernels::cpu

// The engine's own matrix products on a GPU, and their shared host code. cuda::matmul (matmul.cpp)
// checks the arguments; sizes are not zero except k.
#pragma once

#include <climits>
#include <type_traits>

#include "kernels/cuda/device/context.h"
#include "kernels/matmul.h"

namespace tessera::kernels::cuda {

// fp32 and fp64 on ordinary cores. The products of an element are added in ascending k, for all
// tiles.
void matmul_simt(const Matmul& product, Context& context);

// On tensor cores: steps of 16 along k in ascending order, fp32 accumulators.
void matmul_bfloat16(const Matmul& product, Context& context);
void matmul_float16(const Matmul& product, Context& context);

// One of the above, by dtype.
void matmul_own(const Matmul& product, Context& context);

// The limit of a grid in y: the number of products of a batch that one launch can take.
inline constexpr std::int64_t most_products_of_a_launch = 65535;

// Bytes from a matrix's first element to its last, over a batch.
inline std::int64_t bytes_spanned(std::int64_t rows, std::int64_t columns, std::int64_t leading,
                                  std::int64_t batch, std::int64_t stride, DType dtype) {
  if (rows == 0 || columns == 0 || batch == 0) return 0;
  return ((batch - 1) * stride + (rows - 1) * leading + columns) *
         static_cast<std::int64_t>(size_of(dtype));
}
inline std::int64_t bytes_of_a(const Matmul& p) {
  return bytes_spanned(p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, p.batch,
                       p.stride_a, p.dtype);
}
inline std::int64_t bytes_of_b(const Matmul& p) {
  return bytes_spanned(p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, p.batch,
                       p.stride_b, p.dtype);
}
inline std::int64_t bytes_of_c(const Matmul& p) {
  return bytes_spanned(p.m, p.n, p.ldc, p.batch, p.stride_c, p.out_dtype);
}
inline std::int64_t bytes_of_bias(const Matmul& p) {
  return p.bias == nullptr ? 0 : p.n * static_cast<std::int64_t>(size_of(p.dtype));
}

// True if every row of every product of a batch begins at a multiple of `elements` elements of
// `element_bytes` bytes.
inline bool rows_aligned(const void* matrix, std::int64_t leading, std::int64_t batch,
                         std::int64_t stride, std::int64_t elements, std::size_t element_bytes) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * element_bytes;
  return reinterpret_cast<std::uintptr_t>(matrix) % bytes == 0 && leading % elements == 0 &&
         (batch == 1 || stride % elements == 0);
}

// Calls body(std::bool_constant<transpose_a>, std::bool_constant<transpose_b>).
template <class Body>
void for_transposes(const Matmul& product, Body&& body) {
  const auto with_a = [&](auto transpose_a) {
    if (product.transpose_b) {
      body(transpose_a, std::true_type{});
    } else {
      body(transpose_a, std::false_type{});
    }
  };
  if (product.transpose_a) {
    with_a(std::true_type{});
  } else {
    with_a(std::false_type{});
  }
}

// Calls body(first, count) for parts of the batch that fit a launch.
template <class Body>
void for_launches(const Matmul& product, Body&& body) {
  for (std::int64_t first = 0; first < product.batch; first += most_products_of_a_launch) {
    const std::int64_t left = product.batch - first;
    body(first, left < most_products_of_a_launch ? left : most_products_of_a_launch);
  }
}

inline std::int64_t tiles_of(std::int64_t elements, std::int64_t tile) {
  return (elements + tile - 1) / tile;
}

// True if square tiles of `tile` occupy the device; otherwise smaller ones are faster. The choice
// does not change a result: an element's sum is the same in every tile.
inline bool tiles_fill_device(const Matmul& product, std::int64_t tile, const Context& context) {
  return tiles_of(product.m, tile) * tiles_of(product.n, tile) * product.batch >=
         context.multiprocessors;
}

}  // namespace tessera::kernels::cuda

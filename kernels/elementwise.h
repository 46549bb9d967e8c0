// Element-wise operations over contiguous memory. `dtype` is fp32, bf16, fp16 or fp64 unless stated
// otherwise; arithmetic is fp32 (fp64 for fp64), rounded once on store.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/quantized.h"

namespace tessera::kernels {

// out[i] = value. Any dtype. Bytes: n*size.
struct Fill {
  void* out;
  std::int64_t n;
  DType dtype;
  double value;
};

// out[i] = convert(in[i] * scale); or out[i] += when accumulate. Floating dtypes in any
// combination, and integers to any dtype with scale 1. in may equal out when the sizes agree.
struct Cast {
  const void* in;
  void* out;
  std::int64_t n;
  DType in_dtype, out_dtype;
  float scale = 1.0f;
  bool accumulate = false;
};

enum class UnaryOp : std::uint8_t {
  negate,
  relu,
  gelu_erf,
  gelu_tanh,
  silu,
  tanh,
  sigmoid,
  exp,
  log,
  sqrt,
  square
};

template <UnaryOp op>
using UnaryOpTag = std::integral_constant<UnaryOp, op>;

// Calls body(UnaryOpTag<op>{}); does nothing for a value that is not in the list. constexpr and
// inlined always, because kernels of CUDA call it for each element.
template <class Body>
[[gnu::always_inline]] inline constexpr void for_unary_op(UnaryOp op, Body&& body) {
  switch (op) {
    case UnaryOp::negate:
      return body(UnaryOpTag<UnaryOp::negate>{});
    case UnaryOp::relu:
      return body(UnaryOpTag<UnaryOp::relu>{});
    case UnaryOp::gelu_erf:
      return body(UnaryOpTag<UnaryOp::gelu_erf>{});
    case UnaryOp::gelu_tanh:
      return body(UnaryOpTag<UnaryOp::gelu_tanh>{});
    case UnaryOp::silu:
      return body(UnaryOpTag<UnaryOp::silu>{});
    case UnaryOp::tanh:
      return body(UnaryOpTag<UnaryOp::tanh>{});
    case UnaryOp::sigmoid:
      return body(UnaryOpTag<UnaryOp::sigmoid>{});
    case UnaryOp::exp:
      return body(UnaryOpTag<UnaryOp::exp>{});
    case UnaryOp::log:
      return body(UnaryOpTag<UnaryOp::log>{});
    case UnaryOp::sqrt:
      return body(UnaryOpTag<UnaryOp::sqrt>{});
    case UnaryOp::square:
      return body(UnaryOpTag<UnaryOp::square>{});
  }
}

// out = f(x). out may equal x.
struct Unary {
  UnaryOp op;
  const void* x;
  void* out;
  std::int64_t n;
  DType dtype;
};

// dx = dout * f'(x) (x is the forward's input). dx may equal dout or x; += when accumulate.
struct UnaryBackward {
  UnaryOp op;
  const void* dout;
  const void* x;
  void* dx;
  std::int64_t n;
  DType dtype;
  bool accumulate = false;
};

enum class BinaryOp : std::uint8_t { add, subtract, multiply, divide };

// out[r,i] = a[r,i] op b[r*b_repeats ? : i]: b has `inner` elements and is repeated over `outer`
// rows (outer == 1: same shapes; inner == 1 with outer == n: a scalar). out may equal a, or b when
// outer == 1.
struct Binary {
  BinaryOp op;
  const void* a;  // [outer, inner]
  const void* b;  // [inner]
  void* out;      // [outer, inner]
  std::int64_t outer, inner;
  DType dtype;
};

// A rectangle of a weight of base/quantized.h as floating numbers, [row_count, column_count] and
// dense: out = number of the code * scale, in fp32, rounded once. dtype: fp32, bf16 or fp16.
// Reads row_count * column_count codes (half a byte or a byte each) and their scales.
struct Dequantize {
  QuantizedFormat format;
  const void* weight;  // quantized_bytes(format, rows, columns), from a multiple of 4 bytes on
  void* out;
  std::int64_t rows, columns;  // of the whole weight
  std::int64_t first_row, row_count, first_column, column_count;
  DType dtype;
};

// out[i] = a[i] * scale + shift.
struct Affine {
  const void* x;
  void* out;
  std::int64_t n;
  DType dtype;
  double scale, shift;
};

}  // namespace tessera::kernels

// Products with a matrix of 8-bit integers, on the CPU. It is a quarter of the matrix in fp32, and
// for a few rows the time is that of reading it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels::cpu {

// The matrix has a row for each output: int8 [inputs], zeros up to a multiple of 32, and the row's
// scale, an fp32 number without alignment. Integers times scale are the weights.
std::int64_t int8_row_bytes(std::int64_t inputs);
// Writes the zeros and the scale of a row whose integers are there.
void finish_int8_row(std::byte* row, std::int64_t inputs, float scale);

// More inputs could overflow the sums.
inline constexpr std::int64_t most_int8_inputs = std::int64_t{1} << 17;

// out[rows, outputs] = x[rows, inputs] * w^T (+ bias[outputs]); x, bias and out are dense and of
// `dtype`: fp32, bf16 or fp16.
//
// Each row of x becomes integers q = round(x * (127 / max|x|)), halves to even, with the scale
// max|x| / 127. Products are summed in int32, which is exact, and a result is
// float(sum) * (scale of x * scale of w) + bias in fp32, rounded once to `dtype`. So rows, threads
// and instruction sets do not change a bit. A row that has an Inf or a NaN gives NaN.
struct Int8Linear {
  const void* x;
  const std::byte* w;
  const void* bias;  // or null
  void* out;
  std::int64_t rows, inputs, outputs;
  DType dtype;
};
void int8_linear(const Int8Linear& a);

}  // namespace tessera::kernels::cpu

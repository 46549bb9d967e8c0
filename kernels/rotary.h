// Rotary positions, half-split (Hugging Face) layout: pairs are (i, i + head_dim/2).
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// x[row, head, :] rotated by the angle of position (first_position + row % sequence).
// cosine and sine: fp32 [positions, head_dim/2] tables. inverse rotates back (the backward). out
// may equal x.
struct Rotary {
  const void* x;
  void* out;
  const float* cosine;
  const float* sine;
  std::int64_t rows, sequence, heads, head_dim, first_position;
  std::int64_t x_stride, out_stride;  // elements between rows
  bool inverse;
  DType dtype;
};

}  // namespace tessera::kernels

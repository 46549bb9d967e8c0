// Fused activations of transformer feed-forward blocks.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// out[r,i] = gelu(x[r,i] + bias[i]). exact: erf form; otherwise the tanh approximation (GPT-2's
// gelu_new).
struct BiasGelu {
  const void* x;     // [rows, dim]
  const void* bias;  // [dim] or null
  void* out;         // may equal x
  std::int64_t rows, dim;
  bool exact;
  DType dtype;
};

// dx = dout * gelu'(x + bias). out (optional) receives gelu(x + bias) again, so the forward need
// not keep it. dx may equal dout; out may equal x. Column sums of dx give the bias gradient
// (SumRows).
struct BiasGeluBackward {
  const void* dout;
  const void* x;
  const void* bias;
  void* dx;
  void* out;
  std::int64_t rows, dim;
  bool exact;
  DType dtype;
};

// out = silu(gate) * up, over rows with their own strides (packed [rows, 2*dim] projections need no
// copy).
struct SwiGlu {
  const void* gate;
  const void* up;
  void* out;  // [rows, dim] contiguous
  std::int64_t rows, dim, gate_stride, up_stride;
  DType dtype;
};

struct SwiGluBackward {
  const void* dout;  // [rows, dim] contiguous
  const void* gate;
  const void* up;
  void* dgate;  // strides as gate and up
  void* dup;
  void* out;  // optional: silu(gate)*up again, contiguous
  std::int64_t rows, dim, gate_stride, up_stride;
  DType dtype;
};

}  // namespace tessera::kernels

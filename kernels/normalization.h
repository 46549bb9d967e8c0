// LayerNorm and RMSNorm over the last dimension, with the residual addition fused in.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// sum = x + residual (stored when residual is given, rounded to dtype; the norm reads the rounded
// sum), then out = (sum - mean) * rstd * gamma + beta. mean and rstd: fp32 [rows] (fp64 for fp64),
// mean unused for RMS. RMSNorm (rms = true): out = sum * rstd * gamma, rstd = 1/sqrt(mean(sum^2) +
// eps); beta must be null. Bytes: read x, residual; write sum, out.
struct NormForward {
  const void* x;         // [rows, dim]
  const void* residual;  // [rows, dim] or null
  const void* gamma;     // [dim] of dtype, or null for 1
  const void* beta;      // [dim] of dtype, or null for 0
  void* sum;             // [rows, dim]; null when residual is null
  void* out;             // [rows, dim]
  void* mean;            // [rows] fp32/fp64, null for RMS
  void* rstd;            // [rows] fp32/fp64
  std::int64_t rows, dim;
  float eps;
  bool rms;
  DType dtype;
};

// Gradients. x is the normalised input (the forward's sum when there was a residual).
// dx = dresidual + d(norm)/dx; dresidual (gradient that reaches the sum from elsewhere) may be null
// and may equal dx; dx may equal dout. dgamma, dbeta [dim] of dtype may be null; += when
// accumulate.
struct NormBackward {
  const void* dout;
  const void* dresidual;
  const void* x;
  const void* gamma;
  const void* mean;
  const void* rstd;
  void* dx;
  void* dgamma;
  void* dbeta;
  bool accumulate_gamma = false;
  bool accumulate_beta = false;
  std::int64_t rows, dim;
  bool rms;
  DType dtype;
};

}  // namespace tessera::kernels
